"""What a model's code and config show that costs time, or is not as at Triton, where every instance is a process. Runs nothing.

Reads the source as placement by evidence does (evidence.py), and tells what stands there alone: a call by its name and line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kernel import Finding, ModelConfig, PlacementChoice, usable_cores
from kernel_python.loading.mentions import Mention
from kernel_python.loading.parsing import tree_of
from kernel_python.loading.sources import Doubt, Names, Program

__all__ = ["advice"]

#: Calls that return when something has come to pass -> what does not hold the loop.
SLEEPS = {"time.sleep": "await asyncio.sleep(…)"}
WAITS = frozenset("""
    os.system socket.create_connection socket.getaddrinfo subprocess.call subprocess.check_call subprocess.check_output
    subprocess.getoutput subprocess.getstatusoutput subprocess.run urllib.request.urlopen urllib.request.urlretrieve
    requests.delete requests.get requests.head requests.options requests.patch requests.post requests.put requests.request
    httpx.delete httpx.get httpx.head httpx.options httpx.patch httpx.post httpx.put httpx.request
""".split())  # fmt: skip

#: Libraries that start a thread for each core in every process, unless they are told how many.
_POOLS = re.compile(r"imports (torch|tensorflow|onnxruntime|sklearn|cv2)\b")
_TOLD = re.compile(rb"set_num_threads|num_threads|OMP_NUM_THREADS|threadpool_limits|setNumThreads|parallelism_threads")
_PLACE = re.compile(r"\(([^():]+):(\d+)\)")


def advice(
    config: ModelConfig, file: Path, version_folder: Path, model_folder: Path, choice: PlacementChoice
) -> Iterator[Finding]:
    """Return what the files of one version show, which runs as `choice` says."""
    if choice.where == "process":
        if not choice.asked:
            yield _hop(choice, file, version_folder, model_folder)
        yield from _pools(config, file, choice)
    else:
        yield from _one_process(config, choice)
    if choice.where == "loop":
        yield from _blocking(file, version_folder, model_folder)


def _at_count(config: ModelConfig, severity: str, rule: str, words: str, remedy: str) -> Iterator[Finding]:
    """Yield a finding at the first count of instances above 1 that stands in the file; none where none does."""
    for index, group in enumerate(config.instance_groups):
        placed = config.error(words, at=("instance_group", index, "count"))
        if group.count > 1 and placed.line is not None:
            yield Finding.of(severity, rule, placed, remedy)
            return


def _number(config: ModelConfig) -> int:
    return sum(group.count * max(1, len(group.gpus)) for group in config.instance_groups)


def _pools(config: ModelConfig, file: Path, choice: PlacementChoice) -> Iterator[Finding]:
    """Tell of processes that each have a thread for each core."""
    number, library = _number(config), _POOLS.search(choice.reason)
    if library is None or number < 2 or _TOLD.search(file.read_bytes()):
        return
    cores = usable_cores()
    words = f"{number} processes import {library[1]}, each with a thread for each of {cores} cores unless it is told otherwise"
    remedy = f"have it use {max(1, cores // number)} (torch.set_num_threads, OMP_NUM_THREADS or the like), or fewer instances"
    yield from _at_count(config, "costs", "oversubscribed", words, remedy)


def _one_process(config: ModelConfig, choice: PlacementChoice) -> Iterator[Finding]:
    """Tell of instances that are processes at Triton, and here share one."""
    where = "run on one event loop" if choice.where == "loop" else "are threads of one process, where Python code takes turns"
    words = f"its {_number(config)} instances {where}; at Triton each is a process"
    remedy = 'fine where it waits, or libraries such as numpy compute; else parameter placement "process" (docs/placement.md)'
    yield from _at_count(config, "differs", "one-process", words, remedy)


def _hop(choice: PlacementChoice, file: Path, version_folder: Path, model_folder: Path) -> Finding:
    place = _PLACE.search(choice.reason)
    known = [folder / place[1] for folder in (version_folder, model_folder) if place and (folder / place[1]).exists()]
    where = f"{known[0]}:{place[2]}" if place and known else str(file)
    words = f"runs in a process of its own, as at Triton, and each execution costs the way there and back: {choice.reason}"
    module = re.match(r"imports (\w+)", choice.reason)
    if ", which " in choice.reason:  # why it is known not to be safe
        remedy = "do without that, or leave it so"
    elif module:
        remedy = f"where {module[1]} is safe to share: --backend-config=python,shared-modules={module[1]} (docs/placement.md)"
    else:
        remedy = "where it gets along with other models: parameter placement thread (docs/placement.md)"
    return Finding("costs", "process", where, words, remedy)


def _blocking(file: Path, version_folder: Path, model_folder: Path) -> Iterator[Finding]:
    """Tell of calls that hold the loop: in `execute`, and in any `async def` of the model's files."""
    program = Program(file, version_folder, model_folder, lambda shown, one: None)
    names, lines = Names(program), _lines_of_execute(file)
    told = set()
    for shown, source in program.files:
        for mention in source.mentions:
            in_execute = source is program.main and mention.scope.kind == "def" and mention.line in lines
            if mention.scope.kind != "async def" and not in_execute:
                continue
            called = _waiting(mention, names)
            if called is not None and (shown, mention.line) not in told:
                told.add((shown, mention.line))
                place = next(one for one in (version_folder / shown, model_folder / shown, file) if one.exists())
                words = f"{called} holds the event loop, and all that is served with it, until it returns"
                instead = SLEEPS.get(called, "await asyncio.to_thread(…)")
                remedy = f'{instead}, or parameter placement "thread" (docs/placement.md)'
                yield Finding("costs", "blocks-loop", f"{place}:{mention.line}", words, remedy)


def _waiting(mention: Mention, names: Names) -> str | None:
    """Return the name of the function that is called there, where it is one that waits."""
    try:
        meanings = names.meanings(mention.scope, mention.chain)
    except Doubt:
        return None
    for chain in sorted(meanings):
        for length, _ in mention.calls:  # a meaning ends as what is written does: a call in it is found from the end
            called = ".".join(chain[: max(0, len(chain) - (len(mention.chain) - length))])
            if called in SLEEPS or called in WAITS:
                return called
    return None


def _lines_of_execute(file: Path) -> range:
    """Return the lines of the method `execute` of the model's class; none where there is none."""
    try:
        tree = tree_of(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return range(0)
    for found in tree.body:
        if isinstance(found, ast.ClassDef) and found.name == "TritonPythonModel":
            for one in found.body:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == "execute":
                    return range(one.lineno, (one.end_lineno or one.lineno) + 1)
    return range(0)

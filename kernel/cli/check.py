"""`kernel check`: every mistake of every model at once, each with its place. Loads no model code unless asked to.

Reads configs exactly as a start does and runs the same rules, and has backends look at the models' files without running them. So
what passes here fails at start only for what a model does when it is loaded, and what fails here can't be served; `--load` covers
the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import uvloop

from kernel.cli.flags import (
    add_config_flags,
    add_repository_flags,
    add_storage_flags,
    auto_complete,
    repositories,
    storage_options,
)
from kernel.cli.mistakes import FORMATS, Mistake, mistake_of, warning_of, written
from kernel.cli.opened import opened
from kernel.cli.output import own_stdout
from kernel.cli.parser import Parser
from kernel.config import ConfigError, ConfigErrors, ModelConfig, check_ensembles, listed, read_config, require_complete
from kernel.errors import Code, ServingError
from kernel.interfaces import Backend, PlacementChoice
from kernel.models import RequestCheck, Sample, read_samples, usable_gpus, without_gpus
from kernel.observability import LogOptions, set_up_log
from kernel.plugins import Plugins
from kernel.registry import Failure
from kernel.repository import (
    FetchedFiles,
    ModelFolder,
    Repository,
    missing_versions,
    not_unique,
    place_at,
    select_versions,
    shown,
)
from kernel.requests import nobody
from kernel.server import Kernel

__all__ = ["Found", "check", "find_models", "installed_backends"]

DESCRIPTION = """\
Check the models of one or more model repositories and tell all mistakes at once.

Each mistake is one line: file:line:column: what is wrong — what came and what was wanted; the line of
the file stands below. The models' own code is read, but neither loaded nor run, unless --load is given.
"""

EPILOG = """\
examples:
  kernel check repository/
  kernel check repository/ --load
  kernel check repository/ --format gcc     (a line each, for editors; json and sarif for programs)

Exit status: 0 if the models can be served, 1 if there are mistakes, 2 if the command line is wrong.
"""


@dataclass(slots=True)
class Found:
    """One model of a repository.

    `config` is None where it has mistakes; `versions` are those that the policy selects. `unsure`: what the model makes
    of its config when it is loaded can't be told before. `unseen`: nobody could look at its code. `choice`: where its backend
    would have it run, and why.
    """

    folder: ModelFolder
    config: ModelConfig | None = None
    versions: tuple[int, ...] = ()
    unsure: bool = False
    unseen: bool = False
    choice: PlacementChoice | None = None
    errors: list[ServingError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: FetchedFiles | None = None

    @property
    def here(self) -> ModelFolder:
        """The folder with the files, which are fetched where they lie elsewhere."""
        return self.folder if self.files is None else self.files.folder

    def told(self, words: str) -> str:
        """Return words about the files with the place where the model lies instead of where its files were fetched to."""
        return words if self.files is None else words.replace(str(self.here.path), shown(self.folder.path))


def check(arguments: Sequence[str]) -> int:
    """Run `kernel check`; return the exit status."""
    parser = Parser("kernel check", "[FLAG ...] REPO [REPO ...]", DESCRIPTION, epilog=EPILOG)
    add_repository_flags(parser)
    add_storage_flags(parser)
    add_config_flags(parser)
    parser.add_switch("--load", False, "also load every model, as a start would do, and finalize it again")
    parser.add_argument(
        "--format",
        choices=("text", *FORMATS),
        default="text",
        help="text: for people; gcc: file:line:column: error: words; json; sarif: for code scanners (default: text)",
    )
    options = parser.read(arguments)
    paths = repositories(parser, options)
    try:
        with opened(paths, storage_options(options)) as there:
            return _check(paths, there, options)
    except ServingError as error:
        print(error.message, file=sys.stderr)
        return 1


def _check(paths: Sequence[str], there: Sequence[Repository], options: argparse.Namespace) -> int:
    models = find_models(
        there,
        installed_backends(),
        auto_complete=auto_complete(options),
        config_name=options.model_config_name,
        look=True,
    )
    hints = [words for repository in there if (words := repository.mistaken())]
    if options.format != "text":
        return _check_for_programs(paths, models, hints, options)
    for found in models:
        for warning in found.warnings:
            print(f"warning: {warning}")
        if not found.errors and _is_told(found.choice):
            print(f"{found.folder.name} runs in placement {found.choice}")
        for mistake in found.errors:
            print(found.told("\n".join(_lines(mistake))))
    well = [found.folder.name for found in models if not found.errors]
    failed = len(models) - len(well)
    if options.load and well:
        loaded = _load(paths, well, options)
        for name in well:
            if name in loaded:
                failed += 1
                print("\n".join(_failure_lines(name, loaded[name], loaded.keys() - {name})))
    for words in hints:
        print(words)
    if failed:
        print(f"{failed} of {len(models)} models can't be served")
        return 1
    print(_well(models, paths, options.load))
    return 0


def _check_for_programs(
    paths: Sequence[str], models: Sequence[Found], hints: Sequence[str], options: argparse.Namespace
) -> int:
    """Print what was found in the form that is asked for, and nothing else; hints are for people."""
    mistakes: list[Mistake] = []
    folders = {found.folder.name: shown(found.folder.path) for found in models}
    for found in models:
        name, folder = found.folder.name, str(found.here.path)
        told = [warning_of(name, folder, words) for words in found.warnings]
        told += [mistake_of(name, folder, error) for error in found.errors]
        mistakes += [replace(one, path=found.told(one.path), message=found.told(one.message)) for one in told]
    well = [found.folder.name for found in models if not found.errors]
    loaded = _load(paths, well, options) if options.load and well else {}
    for name, failure in [(name, loaded[name]) for name in well if name in loaded]:
        at = failure.place
        where = (folders[name], None, None) if at is None else (at.file, at.line, at.column)
        mistakes.append(Mistake(name, "error", *where, "", "\n".join((failure.message.strip(), *failure.causes))))
    for words in hints:
        print(words, file=sys.stderr)
    text = written(options.format, mistakes, len(models))
    if text:
        print(text)
    return int(any(one.severity == "error" for one in mistakes))


def _lines(error: ServingError) -> list[str]:
    """Return what is to be said of a mistake: its sentence, and the line of the file with a mark below the column."""
    lines = [error.message]
    if isinstance(error, ConfigError):
        place = place_at(error.path, error.line, error.column)
        lines += [f"    {line}" for line in place.source.splitlines()]
    return lines


def _well(models: Sequence[Found], paths: Sequence[str], loaded: bool) -> str:
    """Return the last words where nothing is wrong: also what was not looked at."""
    if not models:
        return f"warning: no models in {' and '.join(paths)}; a model is a folder such as {paths[0].rstrip('/')}/my_model/1"
    well = f"{len(models)} models are well" if len(models) != 1 else "1 model is well"
    if loaded:
        return well
    them = "them" if len(models) != 1 else "it"
    unsure = [found.folder.name for found in models if found.unsure]
    known = f"; what comes in and out of {', '.join(unsure)} is known only then" if unsure else ""
    unseen = [found.folder.name for found in models if found.unseen]
    known += f"; the code of {', '.join(unseen)} was not looked at" if unseen else ""
    return f"{well}, as far as can be seen without loading {them}{known}; --load loads {them}, too"


def installed_backends() -> dict[str, Backend]:
    """Return the backends of the installed plugins, by name."""
    kernel = Kernel()
    return Plugins().backends(kernel)


def find_models(
    repositories: Sequence[Repository],
    backends: Mapping[str, Backend],
    *,
    auto_complete: bool = True,
    config_name: str = "",
    look: bool = False,
) -> list[Found]:
    """Read and check all models of the repositories, by name. Raises ServingError for a missing repository.

    `look`: also have the backends look at the models' files.
    """
    by_name: dict[str, list[ModelFolder]] = {}
    for repository in repositories:
        for name, folder in repository.scan().items():
            by_name.setdefault(name, []).append(folder)
    models = []
    gpus = usable_gpus()
    for name, folders in sorted(by_name.items()):
        found = Found(folders[0], warnings=[f"{shown(folder.path)}: {words}" for folder in folders for words in folder.warnings])
        models.append(found)
        if len(folders) > 1:
            found.errors.append(not_unique(name, [folder.path for folder in folders]))
            continue
        _read(found, backends, auto_complete, config_name, gpus)
        if look and found.config is not None:
            _look(found, backends)
    configs = {found.folder.name: found.config for found in models if found.config is not None}
    versions = {found.folder.name: set(found.versions) for found in models if found.config is not None}
    broken = {found.folder.name for found in models} - configs.keys()
    unsure = {found.folder.name for found in models if found.unsure}
    for name, errors in check_ensembles(configs, versions, unsure).items():
        found = next(found for found in models if found.folder.name == name)
        steps = {step.model_name for step in configs[name].ensemble or ()}
        if steps & broken:
            # A step's config can't be read, so its tensors are not known; the step's own mistakes are told with the step.
            names = ", ".join(sorted(steps & broken))
            words = f"{found.folder.path}: not checked against its steps: {names} can't be read"
            found.errors.append(ServingError(Code.INVALID_ARG, words))
            continue
        found.errors += errors
    return models


def _read(
    found: Found, backends: Mapping[str, Backend], auto_complete: bool, config_name: str, gpus: tuple[int, ...]
) -> None:
    try:
        if found.folder.problem:
            raise ServingError(Code.INTERNAL, found.folder.problem)
        found.files = found.folder.fetch()
        folder = found.here
        config = read_config(
            folder.path,
            auto_complete=auto_complete,
            config_name=config_name,
            backends=backends,
            gpus=gpus,
            cpu_backends=without_gpus(backends),
            partial=auto_complete,
        )
        found.warnings += config.warnings
        found.warnings += [f"{folder.path}: {words}" for words in missing_versions(config, folder.versions)]
        found.versions = select_versions(config, folder.versions)
        if found.files is not None:
            found.files.bring(found.versions)
        backend = backends.get(config.served_by)
        if backend is None:
            raise config.error("no plugin for ensembles is installed", f"there are {listed(sorted(backends))}")
        backend.validate(config, folder.path, found.versions)
        found.choice = _placement_choice(backend, config, folder, found.versions)
        samples = _samples(config, folder)
        found.unsure = auto_complete and _may_complete(backend, config, folder, found.versions)
        if not found.unsure:
            require_complete(config)
            _check_samples(samples, config)
    except ConfigErrors as error:
        found.errors += error.errors
    except ServingError as error:
        found.errors.append(error)
    else:
        found.config = config


def _is_told(choice: PlacementChoice | None) -> bool:
    """Whether to say where a model runs: in a process, which its config does not ask for."""
    return choice is not None and choice.where == "process" and not choice.asked


def _placement_choice(
    backend: Backend, config: ModelConfig, folder: ModelFolder, versions: Sequence[int]
) -> PlacementChoice | None:
    """Return where the latest version would run, if its backend chooses that."""
    choose = getattr(backend, "choose_placement", None)
    if choose is None or not versions:
        return None
    choice: PlacementChoice = choose(config, folder.path, folder.path / str(max(versions)))
    return choice


def _may_complete(backend: Backend, config: ModelConfig, folder: ModelFolder, versions: Sequence[int]) -> bool:
    """Whether the model may change its config when it is loaded: as the backend says, else where something is left out."""
    ask = getattr(backend, "may_complete", None)
    if ask is not None:
        return bool(ask(config, folder.path, versions))
    specs = (*config.inputs, *config.outputs)
    return not (config.inputs and config.outputs) or any(not spec.dims or spec.datatype == "INVALID" for spec in specs)


def _look(found: Found, backends: Mapping[str, Backend]) -> None:
    """Add what the backend sees in the model's files, without running them."""
    config = found.config
    assert config is not None
    look = getattr(backends[config.served_by], "look", None)
    if look is not None:
        seen = look(config, found.here.path, found.versions)
        found.unseen = seen is None
        found.errors += seen or ()


def _samples(config: ModelConfig, folder: ModelFolder) -> list[Sample]:
    """Read what the model is to be warmed up with. Raises ServingError with the place."""
    try:
        return read_samples(config, folder.path)
    except ServingError as error:
        raise config.error(error.message, at=("model_warmup",)) from error


def _check_samples(samples: Sequence[Sample], config: ModelConfig) -> None:
    """Check what the model is to be warmed up with as its own check does at a load. Raises ServingError with the place."""
    check = RequestCheck(None, config).check
    indices = [index for index, sample in enumerate(config.message.model_warmup) if sample.batch_size]
    for index, sample in zip(indices, samples, strict=True):
        try:
            check(sample.request(config.name, nobody))
        except ServingError as error:
            raise config.error(error.message, at=("model_warmup", index)) from error


def _load(paths: Sequence[str], models: Sequence[str], options: argparse.Namespace) -> dict[str, Failure]:
    """Load these models; return all that are not ready then, those that were not to be loaded, too, and why."""
    set_up_log(LogOptions(info=False, error=False))

    async def load() -> dict[str, Failure]:
        async with Kernel(
            *paths,
            control_mode="explicit",
            load_models=models,
            exit_on_error=False,
            auto_complete=auto_complete(options),
            config_name=options.model_config_name,
            storage=storage_options(options),
        ) as kernel:
            others = {line.name: line.reason for line in kernel.index() if line.state != "READY"}
            failures = kernel.failures()
            return {name: failures.get(name) or Failure(reason, None) for name, reason in others.items()}

    with own_stdout(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load())


def _failure_lines(name: str, failure: Failure, others: Collection[str]) -> list[str]:
    """Return what is to be said of a model that failed to load: with its place, the line there, and all that is behind it.

    `others`: models that failed as well, which need not be told again by those that need them.
    """
    needed = sorted(other for other in others if f"'{other}' which has no loaded version" in failure.message)
    if needed:
        return [f"model '{name}' can't be loaded: it needs {', '.join(needed)}"]
    place = failure.place
    head, *rest = [line for line in failure.message.strip().splitlines() if line.strip()] or ["no reason is known"]
    at = f"{place}: " if place is not None and str(place) not in head else ""
    return [
        f"{at}model '{name}' can't be loaded: {head}",
        *(f"    {line}" for line in (place.source.splitlines() if place is not None else ())),
        *(f"  {line}" for line in (*rest, *failure.causes)),
    ]

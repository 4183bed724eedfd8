"""The rules about an ensemble in itself: its steps and the tensors between them (contract: model_config, section 7, stage A).

Each tensor is written once and read at least once, each input used, each output written, and no step waits for itself.
What the models of the steps say to that is the business of ensemble.py.
"""

from __future__ import annotations

from itertools import pairwise

from kernel.config.errors import did_you_mean, listed
from kernel.config.positions import Key, Path
from kernel.config.report import Report

__all__ = ["check_ensemble"]

_STEPS: Path = ("ensemble_scheduling", "step")


def check_ensemble(report: Report) -> None:
    """Check `ensemble_scheduling`: that it is there where it has to be, and the graph of its steps."""
    message, name = report.message, report.name
    scheduled = message.HasField("ensemble_scheduling")
    if message.platform != "ensemble":
        if scheduled:
            words = f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
            report.fail("A", ("ensemble_scheduling",), words, f"got platform '{message.platform}', wanted 'ensemble'")
        return
    if not scheduled:
        words = f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        report.fail("A", ("platform",), words, "add ensemble_scheduling { step [ … ] }")
        return
    if message.instance_group:
        report.fail("A", ("instance_group", 0), f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        report.fail("A", ("optimization",), f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        report.fail("A", ("model_warmup", 0), f"model_warmup can not be specified for ensemble '{name}'")
    if not message.ensemble_scheduling.step:
        report.fail("A", ("ensemble_scheduling",), f"must specify 'step' for ensemble '{name}'")
        return
    if _check_steps(report):
        _Graph(report).check()


def _check_steps(report: Report) -> bool:
    """Note what a step lacks; without it there is no graph to look at."""
    complete = True
    for index, step in enumerate(report.message.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                words = f"must specify '{field}' in step {index} of ensemble '{report.name}'"
                report.fail("A", (*_STEPS, index), words)
                complete = False
    return complete


class _Graph:
    """Who writes and who reads each tensor of the ensemble: `(step, key of the map)`."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.name = report.name
        self.steps = report.message.ensemble_scheduling.step
        self.inputs = [io.name for io in report.message.input]
        self.outputs = [io.name for io in report.message.output]
        self.given, self.wanted = set(self.inputs), set(self.outputs)
        self.writers: dict[str, tuple[int, str]] = {}
        self.readers: dict[str, list[tuple[int, str]]] = {}
        for index, step in enumerate(self.steps):
            for key in sorted(step.input_map):
                self.readers.setdefault(step.input_map[key], []).append((index, key))

    def check(self) -> None:
        self.check_writers()
        for index, tensor in enumerate(self.inputs):
            if tensor not in self.readers:
                words = f"ensemble input '{tensor}' for ensemble {self.name}' is not used"
                read = [read for read in self.readers if read not in self.inputs and read not in self.writers]
                detail = f"no step reads it; the steps read {listed(self.readers)}{did_you_mean(tensor, read)}"
                self.report.fail("A", ("input", index), words, detail)
        told = self.check_outputs()
        self.check_dangling(told)
        self.check_cycles(told)

    def at(self, field: str, entry: tuple[int, str]) -> Path:
        return (*_STEPS, entry[0], field, Key(entry[1]), "value")

    def step_text(self, index: int) -> str:
        return f"step {index} ('{self.steps[index].model_name}')"

    def check_writers(self) -> None:
        for index, step in enumerate(self.steps):
            for key in sorted(step.output_map):
                tensor = step.output_map[key]
                if tensor not in self.writers and tensor not in self.given:
                    self.writers[tensor] = (index, key)
                    continue
                words = (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble"
                    f" '{self.name}' step {index}"
                )
                first = (
                    "it is an input of the ensemble"
                    if tensor in self.given
                    else f"{self.step_text(self.writers[tensor][0])} writes it too"
                )
                self.report.fail("A", self.at("output_map", (index, key)), words, first)

    def check_outputs(self) -> set[str]:
        """Note the outputs that are never written; return them, and the tensors that are named as the reason."""
        ready = self.ready()
        told: set[str] = set()
        for tensor in self.outputs:
            if tensor in ready:
                continue
            told.add(tensor)
            if tensor not in self.writers and tensor not in self.readers:
                self.missing_output(tensor, f"ensemble output '{tensor}' for ensemble {self.name}' is not used")
                continue
            words = f"output '{tensor}' for ensemble '{self.name}' is not written"
            source = self.source(tensor, ready)
            if source != tensor:
                words += f": at least one of its depending tensors, '{source}', is not connected"
            if source in self.writers:
                self.report.fail("A", *self.circle_words(words))
            elif source == tensor:
                self.missing_output(tensor, words)
            else:
                told.add(source)
                self.report.fail("A", *self.unwritten_words(source, words))
        return told

    def ready(self) -> set[str]:
        """Return the tensors that come to be: the inputs, and what steps write that read only such."""
        ready = set(self.inputs)
        lacks = [len(set(step.input_map.values()) - ready) for step in self.steps]
        possible = [index for index, count in enumerate(lacks) if not count]
        for index in possible:  # which grows meanwhile
            for tensor in set(self.steps[index].output_map.values()) - ready:
                ready.add(tensor)
                for reader in {reader for reader, _ in self.readers.get(tensor, ())}:
                    lacks[reader] -= 1
                    if not lacks[reader]:
                        possible.append(reader)
        return ready

    def source(self, tensor: str, ready: set[str]) -> str:
        """Return the reason why `tensor` is not written, or itself where there is no other. (The reference's walk.)"""
        last, seen = tensor, set()
        while last in self.writers:
            read = self.steps[self.writers[last][0]].input_map
            waits = [read[key] for key in sorted(read) if read[key] not in ready and read[key] not in seen]
            if not waits:
                break
            last = waits[0]
            seen.add(last)
        return last

    def missing_output(self, tensor: str, words: str) -> None:
        """Place it at the map that should have named the output: one with a near name, else one whose tensor nobody
        reads.
        """
        unread = [written for written in self.writers if written not in self.readers and written not in self.outputs]
        near = [written for written in self.writers if did_you_mean(tensor, [written])]
        guess = next(iter([*near, *unread]), "")
        at: Path = self.at("output_map", self.writers[guess]) if guess else (*_STEPS, len(self.steps) - 1, "output_map")
        written = ", ".join(f"'{name}' ({self.step_text(index)})" for name, (index, _) in self.writers.items())
        detail = f"no step writes '{tensor}'; the steps write {written}{did_you_mean(tensor, self.writers)}"
        self.report.fail("A", at, words, detail)

    def unwritten_words(self, tensor: str, words: str) -> tuple[Path, str, str]:
        """Return the place, `words` and the detail for a tensor that is read, but neither written nor an input."""
        entry = self.readers[tensor][0]
        detail = f"{self.step_text(entry[0])} reads it, but no step writes it and it is no input"
        return self.at("input_map", entry), words, detail + did_you_mean(tensor, [*self.inputs, *self.writers])

    def check_dangling(self, told: set[str]) -> None:
        words = "ensemble tensor '{}' is unused in ensemble '{}'"
        for tensor in self.readers:
            if tensor not in self.writers and tensor not in self.given and tensor not in told:
                self.report.fail("A", *self.unwritten_words(tensor, words.format(tensor, self.name)))
        if any(tensor not in self.writers for tensor in self.outputs):
            return  # what nobody reads is then most likely the missing output, said already
        for tensor, entry in self.writers.items():
            if tensor not in self.readers and tensor not in self.wanted:
                detail = f"{self.step_text(entry[0])} writes it, but no step reads it and it is no output"
                self.report.fail("A", self.at("output_map", entry), words.format(tensor, self.name), detail)

    def check_cycles(self, told: set[str]) -> None:
        """Note a circle of steps that keeps no output from being written; the others are noted with their output."""
        circle = self.circle()
        if circle and not any(tensor in self.writers for tensor in told):
            at, _, detail = self.circle_words("")
            self.report.fail("A", at, "", detail.replace("steps wait", f"steps of ensemble '{self.name}' wait", 1))

    def circle(self) -> list[int]:
        """Return steps each of which waits for the one before it, the first once more at the end; empty where there are none."""
        waits: dict[int, set[int]] = {
            index: {self.writers[tensor][0] for tensor in step.input_map.values() if tensor in self.writers}
            for index, step in enumerate(self.steps)
        }
        lacks = {index: len(before) for index, before in waits.items()}
        behind: dict[int, list[int]] = {}
        for index, before in waits.items():
            for other in before:
                behind.setdefault(other, []).append(index)
        ready = [index for index, count in lacks.items() if not count]
        for done in ready:  # which grows meanwhile
            for index in behind.get(done, ()):
                lacks[index] -= 1
                if not lacks[index]:
                    ready.append(index)
        stuck = waits.keys() - set(ready)
        if not stuck:
            return []
        path = [min(stuck)]  # every stuck step waits for a stuck one: walking on must come round
        while path[-1] not in path[:-1]:
            path.append(min(waits[path[-1]] & stuck))
        return path[path.index(path[-1]) :][::-1]

    def circle_words(self, words: str) -> tuple[Path, str, str]:
        """Return the place where a circle of steps closes, `words`, and the circle in detail."""
        circle = self.circle()
        told = " -> ".join(self.step_text(index) for index in circle)
        keys = [self.key_from(first, second) for first, second in pairwise(circle)]
        tensors = [self.steps[index].input_map[key] for index, key in zip(circle[1:], keys)]
        detail = f"steps wait for each other: {told}; the tensors between them are {listed(tensors)}"
        return self.at("input_map", (circle[1], keys[0])), words, detail

    def key_from(self, first: int, second: int) -> str:
        """Return the input by which step `second` takes a tensor of step `first`."""
        read = self.steps[second].input_map
        return min(key for key, tensor in read.items() if self.writers.get(tensor, (-1, ""))[0] == first)

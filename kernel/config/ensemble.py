"""Compares ensembles with the models of their steps: existence, versions, names, types, shapes, batch sizes,
decoupling, cycles.

Stage C (contract: model_config, section 7): runs whenever one of the models comes or goes. Pure: configs in, errors out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kernel.config.errors import ConfigError, did_you_mean, listed
from kernel.config.positions import Key, Path
from kernel.config.records import EnsembleStep, ModelConfig, TensorSpec

__all__ = ["CIRCULAR", "check_ensembles", "is_decoupled"]

#: What the reference calls ensembles that consist of one another.
CIRCULAR = "circular dependency between ensembles"
_STEPS: Path = ("ensemble_scheduling", "step")


def check_ensembles(
    configs: Mapping[str, ModelConfig],
    loaded_versions: Mapping[str, Collection[int]] | None = None,
    unsure: Collection[str] = (),
) -> dict[str, list[ConfigError]]:
    """Return the mistakes of each ensemble among `configs` that has any.

    `configs`: all models that are known, one config a name; what is not there counts as not available.
    `loaded_versions`: the versions that can serve; leave it out to compare configs only. `unsure`: models whose inputs, outputs
    and batch size nobody knows before they are loaded; they are not compared with.
    """
    errors = {}
    for name, config in configs.items():
        if config.ensemble is not None:
            found = _Check(config, configs, loaded_versions, unsure).run()
            if found:
                errors[name] = found
    return errors


def is_decoupled(config: ModelConfig, configs: Mapping[str, ModelConfig]) -> bool:
    """Return whether the model is decoupled; an ensemble is where one of its steps is, whatever its own config says."""
    pending = [config]
    seen = {config.name}
    while pending:
        current = pending.pop()
        if current.ensemble is None and current.decoupled:
            return True
        names = {step.model_name for step in current.ensemble or ()} - seen
        seen |= names
        pending += [configs[name] for name in names if name in configs]
    return False


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a tensor of the ensemble is taken for, and by which model first."""

    model: str
    spec: TensorSpec
    batching: bool

    def dims(self, full: bool) -> tuple[int, ...]:
        return (-1, *self.spec.dims) if full and self.batching else self.spec.dims

    @property
    def type_name(self) -> str:
        return "TYPE_STRING" if self.spec.datatype == "BYTES" else f"TYPE_{self.spec.datatype}"


class _Check:
    def __init__(
        self,
        config: ModelConfig,
        configs: Mapping[str, ModelConfig],
        loaded: Mapping[str, Collection[int]] | None,
        unsure: Collection[str],
    ) -> None:
        self.config = config
        self.name = config.name
        self.steps = config.ensemble or ()
        self.configs = configs
        self.loaded = loaded
        self.unsure = unsure
        self.errors: list[ConfigError] = []

    def run(self) -> list[ConfigError]:
        self.check_cycle()
        if self.errors:
            return self.errors  # in a circle no step can be told its tensors, so nothing else is worth saying
        self.check_models()
        batching = self.config.max_batch_size > 0
        meanings = {
            spec.name: _Meaning(self.name, spec, batching) for spec in (*self.config.inputs, *self.config.outputs)
        }
        for index, step in enumerate(self.steps):
            model = self.configs.get(step.model_name)
            if model is not None and step.model_name not in self.unsure:
                self.check_batch_size(index, model)
                self.check_inputs(index, step, model, meanings)
                self.check_tensors(index, step, model, meanings, "output")
        self.check_decoupled()
        return self.errors

    def fail(self, at: Path, words: str, detail: str = "") -> None:
        self.errors.append(self.config.error(words, detail, at=(*_STEPS, *at), stage="C"))

    def check_cycle(self) -> None:
        circle = _circle(self.name, self.configs)
        if circle:
            index = next(index for index, step in enumerate(self.steps) if step.model_name == circle[1])
            words = f"{CIRCULAR}: {circle[0]} -> ... -> {circle[-2]} -> {circle[0]}"
            self.fail((index, "model_name"), words, f"the whole circle is {' -> '.join(circle)}")

    def check_models(self) -> None:
        absent = {
            step.model_name: index
            for index, step in reversed(list(enumerate(self.steps)))
            if step.model_name not in self.configs
        }
        if absent:
            names = sorted(absent)
            words = f"ensemble {self.name} contains models that are not available or ambiguous: {', '.join(names)}"
            others = [name for name in self.configs if name != self.name]
            near = did_you_mean(names[0], others) if len(names) == 1 else ""
            self.fail((min(absent.values()), "model_name"), words, f"known are {listed(sorted(others))}{near}")
        for index, step in enumerate(self.steps):
            if self.loaded is None or step.model_name in absent:
                continue
            versions = sorted(self.loaded.get(step.model_name, ()))
            if not versions:
                words = f"ensemble '{self.name}' depends on '{step.model_name}' which has no loaded version."
                self.fail((index, "model_name"), words)
            elif step.model_version != -1 and step.model_version not in versions:
                version = step.model_version
                words = (
                    f"ensemble '{self.name}' depends on '{step.model_name}' whose required version {version}"
                    " is not loaded."
                )
                literal = (
                    "; without 'model_version' it means version 0, write model_version: -1 for the latest"
                    if version == 0
                    else ""
                )
                self.fail((index, "model_version"), words, f"loaded are {', '.join(map(str, versions))}{literal}")

    def check_batch_size(self, index: int, model: ModelConfig) -> None:
        ours, theirs = self.config.max_batch_size, model.max_batch_size
        if 0 < theirs < ours:
            words = (
                f"ensemble {self.name} allows maximum batch size {ours}, but it contains model {model.name}"
                f" which only allows maximum batch size to be {theirs}"
            )
            self.fail((index, "model_name"), words)

    def check_inputs(self, index: int, step: EnsembleStep, model: ModelConfig, meanings: dict[str, _Meaning]) -> None:
        self.check_tensors(index, step, model, meanings, "input")
        for spec in model.inputs:
            if spec.name not in step.input_map and not spec.optional:
                words = (
                    f"in ensemble {self.name}, input {spec.name} in model {model.name} is not mapped to any"
                    " ensemble tensors"
                )
                self.fail((index, "input_map"), words, f"step {index} maps {listed(sorted(step.input_map))}")

    def check_tensors(
        self, index: int, step: EnsembleStep, model: ModelConfig, meanings: dict[str, _Meaning], kind: str
    ) -> None:
        specs = {spec.name: spec for spec in (model.inputs if kind == "input" else model.outputs)}
        mapped = step.input_map if kind == "input" else step.output_map
        direction = "to" if kind == "input" else "from"
        for name, tensor in sorted(mapped.items()):
            at: Path = (index, f"{kind}_map", Key(name))
            spec = specs.get(name)
            if spec is None:
                words = (
                    f"in ensemble {self.name}, ensemble tensor {tensor} is mapping {direction} non-existing"
                    f" {kind} {name} in model {model.name}"
                )
                words = words.replace("is mapping from", "is mapped from")
                self.fail(at, words, f"its {kind}s are {listed(specs)}{did_you_mean(name, specs)}")
                continue
            meaning = _Meaning(model.name, spec, model.max_batch_size > 0)
            first = meanings.setdefault(tensor, meaning)
            self.check_same(first, meaning, tensor, at)

    def check_same(self, first: _Meaning, second: _Meaning, tensor: str, at: Path) -> None:
        words = f"in ensemble {self.name}, ensemble tensor {tensor}: inconsistent"
        mapped = f"step {at[0]} maps it as '{second.spec.name}'"
        if first.spec.datatype != second.spec.datatype:
            ours, theirs = first.type_name, second.type_name
            self.fail(
                at,
                f"{words} data type: {ours} is inferred from model {first.model} while {theirs} is inferred"
                f" from model {second.model}",
                mapped,
            )
        # Either without the batch dimension or with it: a row of a batch may go to a model that batches not, and the other
        # way round, as in the reference.
        one, two = first.dims(True), second.dims(True)
        if not _same_shape(one, two) and not _same_shape(first.dims(False), second.dims(False)):
            ours, theirs = _dims_text(one), _dims_text(two)
            self.fail(
                at,
                f"{words} shape: {ours} is inferred from model {first.model} while {theirs} is inferred from"
                f" model {second.model}",
                mapped,
            )

    def check_decoupled(self) -> None:
        """Responses of two decoupled models can't be merged: each tensor descends from at most one of them."""
        origin = dict.fromkeys(
            (spec.name for spec in self.config.inputs), -1
        )  # tensor -> the decoupled step it comes from
        outputs = {spec.name for spec in self.config.outputs}
        pending = dict(enumerate(self.steps))
        progress = True
        while pending and progress:
            progress = False
            for index, step in list(pending.items()):
                if any(tensor not in origin for tensor in step.input_map.values()):
                    continue
                origins = {tensor: origin[tensor] for tensor in step.input_map.values()}
                model = self.configs.get(step.model_name)
                if len(set(origins.values())) > 1:
                    # The reference names the ensemble, not the model, where the step writes nothing but outputs of the ensemble.
                    named = self.name if {*step.output_map.values()} <= outputs else step.model_name
                    words = (
                        f"in ensemble {self.name}, step of model '{named}' receives inputs originated from different"
                        " decoupled models"
                    )
                    told = (f"'{tensor}' from {self.origin_text(source)}" for tensor, source in sorted(origins.items()))
                    self.fail((index, "input_map"), words, f"step {index} ('{step.model_name}') got {', '.join(told)}")
                decoupled = model is not None and is_decoupled(model, self.configs)
                source = index if decoupled else max(origins.values(), default=-1)
                origin.update(dict.fromkeys(step.output_map.values(), source))
                del pending[index]
                progress = True
        origins = {spec.name: origin[spec.name] for spec in self.config.outputs if spec.name in origin}
        if len(set(origins.values())) > 1:
            words = (
                f"in ensemble {self.name}, step of model '{self.name}' receives inputs originated from different"
                " decoupled models"
            )
            told = (f"output '{tensor}' from {self.origin_text(source)}" for tensor, source in origins.items())
            self.fail((), words, f"got {', '.join(told)}")

    def origin_text(self, step: int) -> str:
        return "the request" if step < 0 else f"step {step} ('{self.steps[step].model_name}')"


def _same_shape(one: Sequence[int], two: Sequence[int]) -> bool:
    return len(one) == len(two) and all(a == b or -1 in (a, b) for a, b in zip(one, two, strict=True))


def _dims_text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _circle(start: str, configs: Mapping[str, ModelConfig]) -> list[str]:
    """Return the shortest way from an ensemble over its steps back to itself, both ends included; empty where there is
    none.
    """
    ways: dict[str, list[str]] = {start: [start]}
    edge = [start]
    while edge:
        following: list[str] = []
        for name in edge:
            config = configs.get(name)
            for step in config.ensemble or () if config is not None else ():
                if step.model_name == start:
                    return [*ways[name], start]
                if step.model_name not in ways:
                    ways[step.model_name] = [*ways[name], step.model_name]
                    following.append(step.model_name)
        edge = following
    return []

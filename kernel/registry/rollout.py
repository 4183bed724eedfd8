"""One load carried out: which versions stay, which are changed in place, which are made anew, and when they replace what serves.

The law: what has not changed goes on as it is, statistics included; a version that is made anew serves when all that the
load brings are READY and not before; a load that fails for one of them takes nothing away and brings nothing.
(Contract: lifecycle, section 4, points 4 to 7 and 10.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernel.config import CIRCULAR, Message, ModelConfig, check_ensembles, is_decoupled, with_changes
from kernel.errors import Code, ServingError
from kernel.models import Model, Runtime
from kernel.registry.catalog import Catalog
from kernel.registry.entries import READY, Entry
from kernel.registry.loading import Loader
from kernel.repository import LoadFailed, LoadPlan, Problem, place_of

__all__ = ["Rollout"]

log = logging.getLogger("kernel")


class Rollout:
    """Carries out plans. `stopping`: nothing may begin to serve any more."""

    def __init__(self, kernel: Runtime, catalog: Catalog, loader: Loader) -> None:
        self._kernel = kernel
        self._catalog = catalog
        self._loader = loader
        self.stopping = False

    async def carry_out(
        self,
        plan: LoadPlan,
        planned: Mapping[str, ModelConfig],
        failures: Mapping[str, ServingError],
        limit: asyncio.Semaphore,
        *,
        anew: bool = False,
    ) -> None:
        """Make the planned versions READY, then let those go that are not selected any more. Raises LoadFailed.

        `limit`: how many versions may be made at a time.
        `planned`: ensembles that may be checked together with this one, loaded or not. `failures`: why models are not there.
        `anew`: although the files are the same, since what they mean is not.
        """
        name = plan.config.name
        entry = self._catalog.entry(name)
        try:
            staying = () if anew else self._staying(plan, entry)
            making = [number for number in plan.versions if number not in staying]
            if making:
                for warning in plan.warnings:
                    log.warning("model '%s': %s", name, warning)
            checked = plan
            if plan.config.is_ensemble and making:
                checked = replace(plan, config=self._checked_ensemble(plan, planned, failures))
            results = await self._made(checked, entry, making, staying, limit)
        except BaseException:
            if plan.files is not None:
                self._catalog.drop(plan.files)
            raise
        self._catalog.planned(plan)
        problems = self._swap(plan, results)
        if plan.files is not None:
            self._catalog.drop(plan.files)  # frees its files where no version uses them
        if problems:
            raise LoadFailed(name, problems)
        self._catalog.keep_only(name, plan.versions)
        self._catalog.refresh(name)

    def _staying(self, plan: LoadPlan, entry: Entry) -> tuple[int, ...]:
        """Return the READY versions that are made of just what the plan has for them."""
        ready = {number: version for number, version in entry.versions.items() if version.state is READY}
        return tuple(
            number for number in plan.versions if number in ready and ready[number].origin == plan.origin(number)
        )

    async def _made(
        self, plan: LoadPlan, entry: Entry, making: Sequence[int], staying: Sequence[int], limit: asyncio.Semaphore
    ) -> dict[int, Model | Problem | None]:
        """Make and change what has to be, all at once; return what came of each version, None for one that stays as it is."""
        name = plan.config.name
        for number in making:
            self._catalog.begin(name, number)
        tasks = {number: asyncio.ensure_future(self._loader.make(plan, number, limit)) for number in making}
        changes = {number: asyncio.ensure_future(self._changed(plan, entry, number)) for number in staying}
        try:
            if tasks or changes:
                await asyncio.wait((*tasks.values(), *changes.values()))  # cancelled itself, `wait` cancels none of them
        except asyncio.CancelledError:
            # Nobody waits for the load any more, but model code can't be interrupted: what still comes up is finalized.
            for number, task in tasks.items():
                task.add_done_callback(self._discard)
                self._catalog.give_up(name, number, "Cancelled: the load was given up")
            raise
        results: dict[int, Model | Problem | None] = {}
        for number, one in (*tasks.items(), *changes.items()):
            error = one.exception()
            results[number] = one.result() if error is None else Problem(number, f"{Code.INTERNAL.value}: {error!r}")
        return results

    async def _changed(self, plan: LoadPlan, entry: Entry, number: int) -> Problem | None:
        """Let a version that stays have the instances, and show the version policy, of the plan's config."""
        model = entry.versions[number].model
        if model is None:
            return None  # it was unloaded in the very turn of the loop in which this was begun
        wanted = plan.config.message
        shown = model.config.message
        if shown.instance_group == wanted.instance_group and shown.version_policy == wanted.version_policy:
            return None

        def change(message: Message) -> None:
            del message.instance_group[:]
            message.instance_group.extend(wanted.instance_group)
            message.version_policy.CopyFrom(wanted.version_policy)

        try:
            config = with_changes(model.config, change)
            self._loader.backend(config).validate(config, plan.folder.path, (number,))
            await model.rearrange(config)
        except ServingError as error:
            return Problem.of(number, error, plan.folder.path)
        except Exception as error:
            log.exception("the instances of model '%s' version %d could not be changed", model.name, number)
            return Problem(number, f"{Code.INTERNAL.value}: {type(error).__name__}: {error}")
        return None

    def _swap(self, plan: LoadPlan, results: Mapping[int, Model | Problem | None]) -> list[Problem]:
        """Let the versions serve that came up if all did, else none of them; return why others did not."""
        made = {number: one for number, one in sorted(results.items()) if isinstance(one, Model)}
        problems = [one for _, one in sorted(results.items()) if isinstance(one, Problem)]
        if self.stopping:
            problems += [Problem(number, f"{Code.UNAVAILABLE.value}: Server exiting") for number in made]
        for problem in problems:
            self._catalog.fail(plan.config.name, problem.version, problem.reason)
        for number, model in made.items():
            if problems:
                self._catalog.turn_away(number, model, plan.files)
            else:
                self._catalog.serve(number, model, plan.origin(number), plan.files)
        self._catalog.refresh(plan.config.name)
        return problems

    def _discard(self, task: asyncio.Future[Model | Problem]) -> None:
        """Finalize a model that came up too late."""
        if not task.cancelled() and task.exception() is None and isinstance(model := task.result(), Model):
            self._catalog.later(model.close())

    def _checked_ensemble(
        self, plan: LoadPlan, planned: Mapping[str, ModelConfig], failures: Mapping[str, ServingError]
    ) -> ModelConfig:
        """Return the ensemble's config with what follows from its models, or raise what is wrong with them (stage C)."""
        config = plan.config
        configs: dict[str, ModelConfig] = dict(planned)
        loaded: dict[str, set[int]] = {}
        for model in self._catalog.ready_models():
            loaded.setdefault(model.name, set()).add(model.version)
            configs[model.name] = model.config
        configs[config.name] = config
        loaded[config.name] = set(plan.versions)
        errors = check_ensembles(configs, loaded).get(config.name)
        if errors:
            steps = dict.fromkeys(step.model_name for step in config.ensemble or ())
            missing = [_missing(config.name, name, failures[name]) for name in steps if name in failures]
            if any(error.words.startswith(CIRCULAR) for error in errors):
                missing = []  # steps that aren't there are no reason of their own: they failed of the same circle
            reasons = "; ".join([*missing, *(error.words_first for error in errors)])
            for number in plan.versions:
                self._catalog.fail(config.name, number, f"{Code.INVALID_ARG.value}: {reasons}")
            self._catalog.planned(plan)  # kept, to be tried again when one of its models has changed
            raise LoadFailed(config.name, reason=f"{reasons}\n", place=place_of(errors[0], plan.folder.path))
        decoupled = is_decoupled(config, configs)

        def compute(message: Message) -> None:
            message.model_transaction_policy.decoupled = decoupled

        return with_changes(config, compute)


def _missing(ensemble: str, name: str, error: ServingError) -> str:
    """Say in the reference's words that a step's model is not there because it could not be loaded."""
    why = getattr(error, "why", error.message).strip()
    words = f"ensemble '{ensemble}' depends on '{name}' which has no loaded version."
    return f"{words} Model '{name}' loading failed with error: {why}"

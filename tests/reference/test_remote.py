"""A remote model whose far end is the real Triton answers as the real Triton does: unary, streamed, in sequences, with errors.

The same is asked of the reference directly first, all of it, then of ours, where each model is one of backend `remote`. Errors
that the far end has told name the endpoint, which is taken away before they are compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from . import servers
from .cases_grpc_infer import INFERENCE
from .cases_grpc_stream import STREAMS
from .cases_sequences import SEQUENCES
from .comparing import SELF, changes, told
from .conftest import MODELS, Line
from .differences import DIFFERENCES as OVER_HTTP
from .differences_grpc import DIFFERENCES as OVER_GRPC
from .wire import NO_ANSWER, Answer, Case
from .wire_grpc import Call

pytestmark = pytest.mark.reference

#: What there is to see of a remote model; what a front end refuses by itself is the same for all models.
KINDS = tuple("raw |a large|optional|reshape|one output|outputs|requested|an id|parameters:|behave:|ensemble".split("|"))

#: And of sequences: controls that a client gives are for the front end to refuse, too, and one model counts what it was asked.
NO_STORY = (": config", ": metadata", ": statistics", ": a control that the client gives", ": a response an execution")

#: Case -> why a remote model can't answer as the model itself does.
DIFFERENT = {
    "gRPC: parameters: sequence name empty": "an empty name is no sequence's, and is not sent",
    "gRPC: behave: twice": "an output without a datatype is refused",
    "gRPC stream: behave: send": "the final flag comes with the response here, as for all models of that kind",
    "gRPC stream: errors as the stream's status": "later versions of the reference know that metadata, and so does ours",
}


def of_interest(case: Call) -> bool:
    return case.name.removeprefix("gRPC: ").startswith(KINDS) or case in STREAMS


PLAIN = [case for case in [*INFERENCE, *STREAMS] if of_interest(case) and case.name not in OVER_GRPC]
STORIES = [case for case in SEQUENCES if not case.name.endswith(NO_STORY) and case.name not in OVER_HTTP]

Answers = dict[str, tuple[Answer, Answer]]


class Pair:
    """The reference, and ours in front of it; started anew with the other port where the reference has died."""

    def __init__(self, folders: pytest.TempPathFactory, models: str) -> None:
        self.folder = folders.mktemp(f"remote-{models}")
        self.models = MODELS / models
        shutil.copytree(self.models, self.folder / "far")
        (self.folder / "near").mkdir()
        self.far = servers.reference(self.folder / "far", self.folder / "reference.log")
        self.far.wait_live()
        self._ours: servers.Server | None = None

    def near(self) -> servers.Server:
        """Return ours, whose models lead to where the reference is now."""
        for model in self.models.iterdir():
            if model.is_dir():
                (self.folder / "near" / model.name / "1").mkdir(parents=True, exist_ok=True)
                parameter = f'{{ key: "endpoints" value {{ string_value: "127.0.0.1:{self.far.grpc_port}" }} }}'
                text = f'backend: "remote" parameters {parameter}'
                (self.folder / "near" / model.name / "config.pbtxt").write_text(text)
        if self._ours is None:
            self._ours = servers.ours(self.folder / "near", self.folder / "ours.log")
            self._ours.wait_live()
        else:
            self._ours.restart()
        return self._ours

    def ask(self, cases: list[Call] | list[Case]) -> Answers:
        with Line(self.far) as line:
            theirs = [line.ask(case) for case in cases]
        ours, begun = [], -1
        for number, case in enumerate(cases):
            while True:
                if begun != self.far.restarts:
                    begun = self.far.restarts
                    near = self.near()
                    with Line(near) as line:  # what sequences there were has gone with the reference
                        for earlier in cases[:number] if cases is STORIES else ():
                            line.ask(earlier)
                with Line(near) as line:
                    answer = line.ask(case)
                if not (self.far.has_died() and self.far.may_restart()):
                    break
                self.far.restart()
            where = f"endpoint 127.0.0.1:{self.far.grpc_port}: "
            ours.append(replace(answer, lines=tuple(one.replace(where, "") for one in answer.lines)))
        return {case.name: both for case, *both in zip(cases, theirs, ours, strict=True)}  # type: ignore[misc]

    def stop(self) -> None:
        for server in (self._ours, self.far):
            if server is not None:
                server.end()
        for server in (self._ours, self.far):
            if server is not None:
                server.stop()


def answers(folders: pytest.TempPathFactory, models: str, cases: list[Call] | list[Case]) -> Iterator[Answers]:
    pair = Pair(folders, models)
    try:
        yield pair.ask(cases)
    finally:
        pair.stop()


@pytest.fixture(scope="module")
def plain_answers(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    yield from answers(tmp_path_factory, "plain", PLAIN)


@pytest.fixture(scope="module")
def sequence_answers(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    yield from answers(tmp_path_factory, "sequences", STORIES)


def compare(name: str, both: tuple[Answer, Answer]) -> None:
    theirs, ours = (replace(one, headers=()) for one in both)  # over HTTP the type of an error tells who has seen it
    if theirs.status == NO_ANSWER:
        pytest.skip(f"the reference gave {theirs.phrase or 'no answer'}, however often it was asked")
    if name in DIFFERENT:
        assert told(ours) != told(theirs), f"listed, but there is no difference any more: {DIFFERENT[name]}"
    else:
        assert told(ours) == told(theirs), changes(theirs, ours)


@pytest.mark.skipif(SELF, reason="the reference has no remote models")
@pytest.mark.parametrize("name", [case.name for case in PLAIN])
def test_as_asked_directly(name: str, plain_answers: Answers) -> None:
    compare(name, plain_answers[name])


@pytest.mark.skipif(SELF, reason="the reference has no remote models")
@pytest.mark.parametrize("name", [case.name for case in STORIES])
def test_sequences_as_asked_directly(name: str, sequence_answers: Answers) -> None:
    compare(name, sequence_answers[name])

"""What concerns more than one replica: who is asked, whose answers are still missing, and what who begins later has to be told.

Pure but for the records that it sends: told of everything, it decides at once. Changes have one order, that in which they come
here, and each replica hears of them in that order; so in the end all have the same. They may be over in another order: what is
told to those who begin later is in the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from kernel.replicas.messages import Answer, Answers, Ask, Message, Told, Wanted

__all__ = ["Questions"]


class Peer(Hashable, Protocol):
    """A replica, as far as it can be asked."""

    index: int

    def send(self, record: Message) -> None:
        """Send it a record; one that has gone gets none."""


P = TypeVar("P", bound=Peer)


@dataclass(slots=True, eq=False)
class _Question(Generic[P]):
    ask: Ask
    origin: P | None  # None where it is told to one who has begun later, or who has asked is gone
    waiting: dict[P, None]
    answers: list[Answer] = field(default_factory=list)
    then: Callable[[], None] | None = None  # called when all have told
    once_more: bool = False  # it is told to one who has begun later
    outdated: bool = False  # one of its key that came after it is over already


class Questions(Generic[P]):
    """The questions and changes of a group."""

    def __init__(self) -> None:
        self._open: dict[int, _Question[P]] = {}
        self._count = 0
        self._changes: dict[str, tuple[int, Ask]] = {}  # what has been changed, by key, with the number that it came with

    def ask(self, origin: P, ask: Ask, peers: Iterable[P]) -> None:
        """Put a question of `origin`'s. `peers`: who is there to be asked, `origin` among them."""
        self._put(ask, origin, [peer for peer in peers if ask.key or peer is not origin])

    def catch_up(self, peer: P, then: Callable[[], None]) -> None:
        """Tell one who has begun later what has been changed; call `then` when it has done all of it.

        And what is being changed at the moment, which nobody waits for.
        """
        left = len(self._changes)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        over = [(number, ask, one_less) for number, ask in self._changes.values()]
        under_way = [
            (number, question.ask, None)
            for number, question in self._open.items()
            if question.ask.key and not (question.once_more or question.outdated)
        ]
        for _, ask, done in sorted([*over, *under_way], key=lambda change: change[0]):
            self._put(ask, None, [peer], done, once_more=True)
        if not left:
            then()

    def told(self, peer: P, told: Told) -> None:
        """`peer` has answered."""
        question = self._open.get(told.id)
        if question is not None and peer in question.waiting:
            self._answered(told.id, question, peer, Answer(peer.index, told.data, told.code, told.message))

    def gone(self, peer: P) -> None:
        """`peer` is not there any more: it answers nothing, and waits for nothing."""
        for number, question in list(self._open.items()):
            if question.origin is peer:
                question.origin = None
            if peer in question.waiting:
                words = f"replica {peer.index} has ended"
                self._answered(number, question, peer, Answer(peer.index, b"", "UNAVAILABLE", words))

    def _put(
        self, ask: Ask, origin: P | None, peers: list[P], then: Callable[[], None] | None = None, once_more: bool = False
    ) -> None:
        self._count += 1
        number = self._count
        question = self._open[number] = _Question(ask, origin, dict.fromkeys(peers), [], then, once_more)
        for peer in peers:
            peer.send(Wanted(number, ask.topic, ask.data))
        if not peers:
            self._over(number, question)

    def _answered(self, number: int, question: _Question[P], peer: P, answer: Answer) -> None:
        del question.waiting[peer]
        question.answers.append(answer)
        if not question.waiting:
            self._over(number, question)

    def _over(self, number: int, question: _Question[P]) -> None:
        del self._open[number]
        ask = question.ask
        if ask.key and not question.once_more and any(not answer.code for answer in question.answers):
            self._keep(number, question)
        if question.origin is not None:
            question.origin.send(Answers(ask.id, sorted(question.answers, key=lambda answer: answer.index)))
        if question.then is not None:
            question.then()

    def _keep(self, number: int, question: _Question[P]) -> None:
        """Note a change that one at least has done."""
        ask = question.ask
        for earlier, other in self._open.items():
            if earlier < number and _is_of(other.ask.key, ask):
                other.outdated = True
        if question.outdated:
            return
        self._changes = {key: change for key, change in self._changes.items() if not _is_of(key, ask)}
        if not ask.forget:
            self._changes[ask.key] = number, ask


def _is_of(key: str, change: Ask) -> bool:
    """Whether nothing is left of what was changed under this key once a change has been made."""
    return bool(key) and (key == change.key or (change.forget and change.key.endswith(":") and key.startswith(change.key)))

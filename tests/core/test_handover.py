"""Requests that replicas hand over to each other: the rule, alone and in a simulated group; two kernels on one virtual loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import BASE, Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Overloaded, Reason, ServingError, Tensor
from kernel.replicas.forms import Answered, Hand, answer_of, hand_of, read, response_of, tensors_of
from kernel.replicas.link import BUFFER, Link
from kernel.replicas.peers import BUSY_TICK, IDLE_TICK, SETTLED_SECONDS, PeerTable
from kernel.rules import Own, Owners, PeerLoad, Reported, UsualTime, better_off, rendezvous, worth_telling
from kernel.rules.handover import BEAT_SECONDS, COST_SECONDS, HOP_SECONDS, REFUSED_SECONDS, STALE_SECONDS, USUAL_LASTS

MODEL = "m/1"


def own(wait: float, count: int = 10, *, seconds: float = 0.0015, cost: float = 0.0001, hop: float = 0.0003) -> Own:
    return Own(wait, seconds, cost, hop, count, on_loop=True)


def peer(name: str, shared: float, when: float = 0.0) -> PeerLoad:
    found = PeerLoad(name)
    found.report(Reported(0, shared), when, True)
    return found


def chosen(peers: Sequence[PeerLoad], mine: Own, now: float = 0.0) -> str | None:
    found = better_off(peers, MODEL, mine, now, random.Random(1).random)
    return None if found is None else found.name


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_a_request_goes_where_it_begins_sooner_the_way_counted() -> None:
    idle, busy = peer("idle", 0.0), peer("busy", 0.010)
    assert chosen([idle], own(0.0)) is None
    assert chosen([idle], own(0.0003)) is None  # the hop lasts as long
    assert chosen([idle], own(0.0004)) == "idle"
    assert chosen([busy], own(0.0102)) is None
    assert chosen([busy], own(0.0104)) == "busy"
    assert chosen([busy, idle], own(0.0104)) == "idle"
    assert chosen([], own(9.0)) is None


def test_what_a_peer_was_sent_counts_until_it_has_reported_it() -> None:
    other = peer("other", 0.0)
    for number in (1, 2, 3):
        other.sent(number, 0.0015)
    assert chosen([other], own(0.0047)) is None and chosen([other], own(0.0049)) == "other"
    other.report(Reported(2, 0.003), 0.0, True)  # it has seen two of them
    assert other.unseen == pytest.approx(0.0015)
    assert chosen([other], own(0.0047)) is None and chosen([other], own(0.0049)) == "other"
    other.report(Reported(3, 0.0), 0.0, True)  # and has answered all
    assert other.unseen == 0.0 and chosen([other], own(0.0004)) == "other"


def test_nothing_is_handed_to_one_of_whom_nothing_is_heard() -> None:
    """And nothing to one that has not reported yet, that leaves, or that has refused this model."""
    other = peer("other", 0.0, when=1.0)
    assert chosen([other], own(1.0), 1.0 + STALE_SECONDS) == "other"
    assert chosen([other], own(1.0), 1.0 + STALE_SECONDS + 0.001) is None
    assert chosen([PeerLoad("new")], own(1.0)) is None
    other.refused(MODEL, 1.0)
    assert chosen([other], own(1.0), 1.0) is None
    assert better_off([other], "another/1", own(1.0), 1.0, random.random) is other
    other.report(Reported(), 1.0 + REFUSED_SECONDS, True)
    assert chosen([other], own(1.0), 1.0 + REFUSED_SECONDS) == "other"
    other.leaving = True
    assert chosen([other], own(1.0), 1.0 + REFUSED_SECONDS) is None


def test_who_has_requests_here_gets_some_of_ours_only_where_it_has_far_less() -> None:
    other = peer("other", 0.006)
    assert chosen([other], own(0.010)) == "other"
    other.here = [1]
    assert chosen([other], own(0.010)) is None and chosen([other], own(0.0124)) == "other"
    assert chosen([other, peer("another", 0.009)], own(0.010)) == "another"


def test_what_is_quicker_executed_than_handed_over_stays_unless_it_waits_for_others() -> None:
    idle = peer("idle", 0.0)
    quick = own(32 * 0.00005, 32, seconds=0.00005)
    assert chosen([idle], quick) is None  # 32 of its kind would wait for what handing it over takes longer
    behind = own(0.02, 13, seconds=0.00005)
    assert chosen([idle], behind) == "idle"  # behind long ones


def test_models_off_the_loop_wait_for_their_own_instances() -> None:
    other = PeerLoad("other")
    other.report(Reported(0, 1.0, {"n/1": 0.02}), 0.0, True)
    mine = Own(0.01, 0.005, 0.0001, 0.0003, 3, on_loop=False)
    assert chosen([other], mine) == "other"
    assert better_off([other], "n/1", mine, 0.0, random.random) is None
    other.report(Reported(0, 1.0, {MODEL: 0.02}), 0.0, False)  # with an answer of one model
    assert chosen([other], mine) is None and other.wait("n/1", False) == 0.02
    other.report(Reported(0, 0.0, {}), 0.0, True)
    assert other.wait("n/1", False) == other.wait(MODEL, True) == 0.0


def test_what_a_hop_takes_is_near_the_quickest_and_slow_ones_are_forgotten() -> None:
    hop = UsualTime(HOP_SECONDS)
    assert hop.seconds(0.0) == HOP_SECONDS
    for _ in range(100):
        hop.measured(0.002, 1.0)
    slow = hop.seconds(1.0)
    assert 0.0015 < slow < 0.002
    for _ in range(8):
        hop.measured(0.001, 1.0)
    assert hop.seconds(1.0) < 0.0012
    hop.measured(1.0, 1.0)  # once
    assert hop.seconds(1.0) < 0.04
    assert hop.seconds(1.0 + USUAL_LASTS) == HOP_SECONDS
    hop.measured(-1.0, 1.0)  # clocks
    assert hop.seconds(1.0) >= 0.0


def test_one_that_was_held_up_does_not_end_the_handing_over() -> None:
    """What it costs is only measured where it is done: one slow measurement would be the last."""
    idle, cost = peer("idle", 0.0), UsualTime(COST_SECONDS)

    def now(when: float) -> str | None:
        return chosen([idle], own(16 * 0.001, 16, seconds=0.001, cost=cost.seconds(when)), 0.0)

    for _ in range(20):
        cost.measured(0.00002, 1.0)
    cost.measured(0.018, 1.0)
    assert now(1.0) == "idle"
    for _ in range(100):
        cost.measured(0.004, 1.0)  # as large tensors do
    assert now(1.0) is None
    assert now(1.0 + USUAL_LASTS) == "idle"  # it is tried again


def test_what_has_changed_by_much_is_told_soon_and_the_rest_now_and_then() -> None:
    assert not worth_telling(0.0, 0.0, BEAT_SECONDS / 2) and worth_telling(0.0, 0.0, BEAT_SECONDS)
    assert worth_telling(0.0, 0.00001, 0.02) and worth_telling(0.01, 0.0, 0.02)  # idle no longer, and again
    assert not worth_telling(0.0, 1.0, 0.001)
    assert worth_telling(0.010, 0.016, 0.02) and not worth_telling(0.010, 0.014, 0.02)
    assert BUSY_TICK < IDLE_TICK <= BEAT_SECONDS < STALE_SECONDS


# -- who has which sequence --------------------------------------------------------------------------------------------


def owners(own: str, *others: str) -> Owners:
    found = Owners()
    found.called(own)
    for name in others:
        found.came(name)
    return found


def test_all_agree_on_who_has_a_sequence_and_each_has_a_share() -> None:
    names = ["17", "18", "19", "20"]
    views = [owners(*names[k:], *names[:k]) for k in range(4)]
    found = [[view.owner("m/1", id) for id in range(400)] for view in views]
    assert found[0] == found[1] == found[2] == found[3]
    assert all(60 < found[0].count(name) < 140 for name in names)
    assert views[0].owner("m/1", "7") == views[0].owner("n/1", "7")  # so that ensembles stay at one
    assert all(view.is_own(id) is (view.own == found[0][id]) for view in views for id in range(400))


def test_one_that_comes_or_goes_changes_nothing_between_the_others() -> None:
    view = owners("1", "2", "3")
    before = [view.owner("m/1", id) for id in range(200)]
    view.went("2", died=True)
    after = [view.owner("m/1", id) for id in range(200)]
    assert all(new == old or old == "2" for old, new in zip(before, after)) and "2" not in after
    assert [view.was_lost(id) for id in range(200)] == [old == "2" for old in before]
    view.came("4")
    assert all(new in (old, "4") for old, new in zip(after, [view.owner("m/1", id) for id in range(200)]))


def test_what_another_keeps_it_has_until_it_says_otherwise_or_dies() -> None:
    view = owners("1", "2")
    id = next(id for id in range(99) if view.is_own(id))
    view.keeps("2", {("m/1", id): 1.0})
    assert view.owner("m/1", id) == "2" and view.owner("n/1", id) == "1"
    view.went("2", died=False)  # it leaves, and finishes what it has
    assert view.owner("m/1", id) == "2" and not view.was_lost(id)
    view.keeps("2", {})
    assert view.owner("m/1", id) == "1"
    view.keeps("2", {("m/1", id): 1.0})
    view.went("2", died=True)
    assert view.owner("m/1", id) == "1"


def test_alone_everything_is_ones_own() -> None:
    view = Owners()
    assert view.owner("m/1", 7) == view.own == "" and view.is_own(7) and not view.was_lost(7)
    assert 0 < sum(owners("1").is_own(id, "2") for id in range(50)) < 50  # once "2" is there, too
    view = owners("1", "2")
    view.leaves()
    assert view.owner("m/1", 7) == "2" and not view.is_own(7)


# -- a group, simulated ------------------------------------------------------------------------------------------------


class Group:
    """Replicas that execute one at a time and hand over by the rule, in virtual time; `delay`: of each message between them."""

    def __init__(self, count: int, seconds: float = 0.0015, delay: float = 0.00015, seed: int = 1) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.delay = delay
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.busy_until = [0.0] * count
        self.inside = [0] * count
        self.most = [0] * count
        self.executed = [0] * count
        self.handed = 0
        self.numbers = [[0] * count for _ in range(count)]
        self.seen = [[0] * count for _ in range(count)]  # by whom, of whom
        self.known = [{k: PeerLoad(str(k)) for k in range(count) if k != who} for who in range(count)]
        self.turn = 0.0  # how long a loop is held at a time: what has ended is seen behind that
        self.clients = [0] * count  # that ask again as soon as they have their answer
        self.taken: list[list[list[int]]] = [[[] for _ in range(count)] for _ in range(count)]  # here, of whom
        for who, others in enumerate(self.known):
            for other, load in others.items():
                load.here = self.taken[who][other]
        self.waits: list[float] = []
        for who in range(count):
            self.tick(who)

    def at(self, when: float, do: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, do))

    def live(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, do = heapq.heappop(self.events)
            do()

    def report(self, who: int, to: int) -> None:
        told = Reported(self.seen[who][to], self.inside[who] * self.seconds)
        self.at(self.now + self.delay, lambda: self.known[to][who].report(told, self.now, True))

    def tick(self, who: int) -> None:
        for other in self.known[who]:
            self.report(who, other)
        self.at(self.now + BUSY_TICK, lambda: self.tick(who))

    def come(self, who: int) -> None:
        """A client's request comes to a replica."""
        mine = Own(self.inside[who] * self.seconds, self.seconds, 0.0001, 2 * self.delay, self.inside[who], True)
        found = better_off(list(self.known[who].values()), MODEL, mine, self.now, self.random.random)
        if found is None:
            self.execute(who, self.now, None)
            return
        to = int(found.name)
        self.numbers[who][to] += 1
        number, came = self.numbers[who][to], self.now
        found.sent(number, self.seconds)
        self.handed += 1

        def arrive() -> None:
            self.seen[to][who] = number
            self.execute(to, came, who)

        self.at(self.now + self.delay, arrive)

    def execute(self, who: int, came: float, of: int | None) -> None:
        self.inside[who] += 1
        self.most[who] = max(self.most[who], self.inside[who])
        begin = max(self.now, self.busy_until[who])
        self.busy_until[who] = over = begin + self.seconds
        self.waits.append(begin - came)
        if of is not None:
            self.taken[who][of].append(1)
        if self.turn:
            shift = who * self.turn / len(self.inside)
            over = shift + self.turn * math.ceil((over - shift) / self.turn)

        def end() -> None:
            self.inside[who] -= 1
            self.executed[who] += 1
            home = who
            if of is not None:
                self.taken[who][of].pop()
                self.report(who, home := of)
            if self.clients[home]:
                self.at(self.now + 2 * self.delay, lambda: self.come(home))

        self.at(over, end)


def test_one_busy_replica_shares_its_work_with_one_that_is_idle() -> None:
    group = Group(2)
    for k in range(4000):  # 1.5 times what one can do
        group.at(0.1 + k * 0.001, lambda: group.come(0))
    group.live(10.0)
    assert sum(group.executed) == 4000 and min(group.executed) > 1500
    assert max(group.waits) < 0.01


def test_a_burst_is_shared() -> None:
    group = Group(2)
    for _ in range(32):
        group.at(0.1, lambda: group.come(0))
    group.live(1.0)
    assert abs(group.executed[0] - group.executed[1]) <= 2


def test_who_is_as_busy_as_others_keeps_its_work() -> None:
    """No ping-pong: two that are overloaded alike would only cost each other time."""
    group = Group(2)
    for k in range(3000):
        for who in (0, 1):
            group.at(0.1 + k * 0.0014, lambda who=who: group.come(who))  # type: ignore[misc]
    group.live(10.0)
    assert sum(group.executed) == 6000 and group.handed < 0.1 * 6000


@pytest.mark.parametrize("turn", [0.0, 0.006])
def test_two_of_as_many_clients_do_not_hand_each_other_their_work(turn: float) -> None:
    """Also where executions end several together, as where threads hold the loop: each sees the other with little then."""
    group = Group(2)
    group.turn = turn
    for who in (0, 1):
        group.clients[who] = 16
        for k in range(16):
            group.at(0.1 + k * 0.0001, lambda who=who: group.come(who))  # type: ignore[misc]
    group.live(5.0)
    assert sum(group.executed) > 2 * 4.8 / 0.0015 * 0.9
    assert group.handed < 0.05 * sum(group.executed)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_run_over_who_is_idle(seed: int) -> None:
    """No herding: seven busy replicas see an idle one at the same moment."""
    group = Group(8, seed=seed)
    for who in range(7):
        for _ in range(40):
            group.at(0.1, lambda who=who: group.come(who))  # type: ignore[misc]
    group.live(2.0)
    assert sum(group.executed) == 280
    assert group.most[7] <= 80  # a share is 35
    assert group.executed[7] >= 8


def test_reports_that_do_not_come_any_more_end_the_handing_over() -> None:
    group = Group(2)
    group.report = lambda who, to: None  # type: ignore[method-assign]
    for k in range(3000):
        group.at(0.1 + k * 0.001, lambda: group.come(0))
    group.live(10.0)
    assert group.executed[1] == 0 or group.handed < STALE_SECONDS / 0.0015


# -- what is said ------------------------------------------------------------------------------------------------------


def test_a_request_arrives_as_it_was() -> None:
    words = np.empty((2, 1), np.object_)
    words[:, 0] = [b"one", "zw\u00f6lf".encode()]
    arrays = {
        "A": Tensor("A", "FP32", np.arange(6, dtype=np.float32).reshape(2, 3).T),
        "B": Tensor("B", "BYTES", words),
        "C": Tensor("C", "BOOL", np.array([True, False, True])),
        "D": Tensor("D", "INT64", np.empty((0, 4), np.int64)),
        "E": Tensor("E", "BF16", np.array(3, np.uint16)),
    }
    parameters = {"s": "x", "i": 1 << 40, "f": 0.5, "b": True}
    request = InferenceRequest(
        "m", arrays, lambda response, final: None, "", "id", ["Y"], parameters, 2, 30, 12.5, 2**64 - 1, 3
    )  # fmt: skip
    head, body = hand_of(7, request, 3)
    hand: Any = read(head)
    found = tensors_of(hand.inputs, memoryview(bytearray(b"".join(body))))
    assert (hand.number, hand.model, hand.version, hand.id, hand.outputs) == (7, "m", 3, "id", ["Y"])
    assert hand.parameters == parameters and (hand.priority, hand.timeout_us, hand.deadline) == (2, 30, 12.5)
    assert (hand.correlation_id, hand.flags, hand.context) == (2**64 - 1, 3, None)
    for tensor in found:
        sent = arrays[tensor.name]
        assert tensor.datatype == sent.datatype and tensor.array.dtype == sent.array.dtype
        assert tensor.array.flags.writeable and np.array_equal(tensor.array, sent.array)


@pytest.mark.parametrize(
    "error",
    [ServingError(Code.NOT_FOUND, "nowhere", Reason.BACKEND), Overloaded("later"), ServingError(Code.CANCELLED, "no")],
)
def test_an_error_arrives_as_it_was(error: ServingError) -> None:
    head, body = answer_of(1, InferenceResponse([], error), True, None, (0.1, 2, 0.3, 0.4))
    form = read(head)
    assert isinstance(form, Answered) and not body and (form.spent, form.seen, form.shared, form.wait) == (0.1, 2, 0.3, 0.4)
    response = response_of(form, memoryview(b""))
    assert response is not None and response.error is not None
    assert type(response.error) is type(error) and response.error.reason is error.reason
    assert (response.error.code, response.error.message) == (error.code, error.message)


@pytest.mark.parametrize("sizes", [[0, 1, 17, 0], [300_000, 5, 2 * BUFFER, 0, 3], [8 * BUFFER] * 2, [40_000] * 60])
def test_a_link_brings_messages_of_any_size_in_their_order(sizes: list[int]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        got: list[tuple[bytes, bytes]] = []
        ended: asyncio.Future[None] = loop.create_future()
        here = Link(loop, ours, lambda head, body: None, lambda: None)
        there = Link(loop, theirs, lambda head, body: got.append((head, bytes(body))), lambda: ended.set_result(None))
        wanted = []
        for k, size in enumerate(sizes):
            head, pieces = b"h" * (k * 1000), [bytes([k % 251]) * (size // 2), memoryview(b"z" * (size - size // 2))]
            here.send(head, pieces)
            wanted.append((head, b"".join(pieces)))
        while len(got) < len(sizes):  # noqa: ASYNC110 - the loop has to turn
            await asyncio.sleep(0)
        assert got == wanted and here.unsent == 0
        here.close()
        await ended
        there.close()

    asyncio.run(scenario())


def test_what_lies_in_a_link_is_given_out_when_that_is_asked_for() -> None:
    """But not while a message is given out: the ones behind it come after it."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        here = Link(loop, ours, lambda head, body: None, lambda: None)
        got: list[bytes] = []

        def take(head: bytes, body: memoryview) -> None:
            there.read()
            got.append(head)

        there = Link(loop, theirs, take, lambda: None)
        for k in range(3):
            here.send(b"%d" % k)
        there.read()  # in the same turn of the loop
        assert got == [b"0", b"1", b"2"]
        here.close()
        there.read()
        there.read()
        assert got == [b"0", b"1", b"2"]

    asyncio.run(scenario())


# -- two kernels -------------------------------------------------------------------------------------------------------


class Wire:
    """What Link is, without sockets: `other` gets what is sent after DELAY."""

    DELAY = 0.0001

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: Any, on_message: Any, on_end: Any) -> None:
        self.loop, self.on_message, self.on_end = loop, on_message, on_end
        self.other: Wire | None = None
        self.ends = sock
        self.ends.append(self)
        self.unsent = 0
        self.closed = False
        self.sent: list[Any] = []
        self.coming: deque[tuple[bytes, memoryview]] = deque()  # to the other end

    def send(self, head: bytes, body: Sequence[Any] = ()) -> None:
        if not self.closed:
            self.sent.append(read(head))
            data = memoryview(bytearray(b"".join(body)))
            self.coming.append((head, data))
            self.loop.call_later(self.DELAY, self._arrive)

    def _arrive(self) -> None:
        for one in self.ends:
            if one is not self and not one.closed and self.coming:
                one.on_message(*self.coming.popleft())

    def read(self) -> None:
        """What has been sent lies in the socket, though the loop has not come to it."""
        for one in self.ends:
            while one is not self and not self.closed and one.coming:
                self.on_message(*one.coming.popleft())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.call_later(self.DELAY, self._gone)

    def _gone(self) -> None:
        for one in self.ends:
            if one is not self and not one.closed:
                one.closed = True
                one.on_end()


class Two:
    """Two kernels, or more, of the same models that know each other."""

    def __init__(self, folder: Path, models: dict[str, str], behaviours: Sequence[dict[str, Behaviour]]) -> None:
        repository = write_repository(folder / "models", models)
        self.backends = [TestBackend(each) for each in behaviours]
        self.kernels = [Kernel(repository, plugins=[each]) for each in self.backends]
        self.peers: list[PeerTable] = []
        self.wires: dict[int, list[Wire]] = {}  # by whose end they are

    async def __aenter__(self) -> Two:
        for kernel in self.kernels:
            kernel.open()
            peers = PeerTable(kernel, len(self.peers), len(self.kernels), random.Random(1).random, Wire)
            kernel.supervision.peers = peers
            self.peers.append(peers)
            await kernel.start()
        for k in range(len(self.kernels)):
            self.meet(k, range(k))
        for peers in self.peers:
            await peers.introduce()
        await asyncio.sleep(0.01)
        return self

    def meet(self, k: int, others: Iterable[int]) -> None:
        """Give a kernel a wire to each of others."""
        for other in others:
            ends: list[Wire] = []
            for one, another in ((other, k), (k, other)):
                self.peers[one].join(f"r{another}", another, ends, f"r{one}")  # type: ignore[arg-type]
            self.wires.setdefault(k, []).append(ends[1])
            self.wires.setdefault(other, []).append(ends[0])

    def die(self, k: int) -> None:
        """Have a kernel gone, as far as the others can see."""
        for wire in self.wires[k]:
            wire.close()

    async def __aexit__(self, *_: object) -> None:
        for kernel, peers in zip(self.kernels, self.peers):
            await kernel.stop(0.0)
            peers.close()

    def executed(self, model: str = "m") -> list[list[str]]:
        return [[id for ids in backend.executions(model) for id in ids] for backend in self.backends]


def two(folder: Path, behaviour: Behaviour, config: str = BASE) -> Two:
    return Two(folder, {"m": config}, ({"m": behaviour}, {"m": behaviour}))


def test_one_connection_uses_both_replicas(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, sleeping(0.01)) as group:
            client = Client(group.kernels[0])
            for k in range(4):  # what an execution takes is not known before
                client.send("m", f"w{k}")
                await asyncio.sleep(0.02)
            for k in range(10):
                client.send("m", f"{k}")
            await asyncio.sleep(0.2)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            here, there = ([id for id in ids if id[0] != "w"] for ids in group.executed())
            assert sorted(here + there) == sorted(map(str, range(10))) and len(there) == len(here) == 5
            response = client.answers[there[0]][0][1]
            assert response is not None and (response.model_name, response.model_version, response.id) == ("m", "1", there[0])
            counts = [kernel.statistics("m")[0].inference_count for kernel in group.kernels]
            assert counts == [9, 5]  # each where it was executed

    run(scenario())


async def warm(group: Two, seconds: float = 0.02) -> Client:
    client = Client(group.kernels[0])
    client.send("m", "warm")
    await asyncio.sleep(seconds)
    return client


def test_all_of_a_request_goes_along(tmp_path: Path) -> None:
    seen: list[InferenceRequest] = []

    def look(batch: Any) -> Any:
        seen.extend(batch.requests)
        return echo(batch)

    async def scenario() -> None:
        levels = "dynamic_batching { priority_levels: 3 default_priority_level: 1 }\nmax_batch_size: 1\n"
        config = (BASE + levels).replace("dims: [ -1 ]", "dims: [ 1 ]")
        async with Two(tmp_path, {"m": config}, ({"m": sleeping(0.05)}, {"m": look})) as group:
            client = Client(group.kernels[0])
            client.send("m", "warm", [[1.0]])
            await asyncio.sleep(0.1)
            now = group.kernels[0].clock()
            for k in range(2):
                client.send("m", str(k), [[1.0]], parameters={"p": 1}, priority=2, timeout_us=40, deadline=now + 9.0)
            await asyncio.sleep(0.2)
            (request,) = seen
            assert (request.id, request.parameters, request.priority, request.timeout_us) == ("1", {"p": 1}, 2, 40)
            assert request.deadline == now + 9.0 and client.outcome("1")[1] == "ok"

    run(scenario())


def test_who_is_not_waited_for_any_more_is_told_to_the_other(tmp_path: Path) -> None:
    """By the client, and by its deadline."""

    async def scenario() -> None:
        async with two(tmp_path, sleeping(1.0)) as group:
            client = await warm(group, 1.5)
            clock = group.kernels[0].clock()
            client.send("m", "here")
            gone = client.send("m", "gone")
            client.send("m", "here too", deadline=clock + 9.0)
            client.send("m", "late", deadline=clock + 0.5)
            await asyncio.sleep(0.2)
            assert group.executed()[1] == ["gone"] and group.kernels[1].inflight()[0].client == "replica 0"
            assert {one.id for one in group.kernels[0].inflight()} == {"here", "here too"}
            group.kernels[0].cancel(gone)
            assert "Request cancelled" in client.outcome("gone")[1]
            await asyncio.sleep(0.4)
            assert "deadline of the request to model 'm' passed after 0.500 s" in client.outcome("late")[1]
            await asyncio.sleep(3.0)
            assert client.outcome("here")[1] == client.outcome("here too")[1] == "ok"
            assert not group.kernels[1].inflight()

    run(scenario())


def test_who_dies_takes_what_it_had_with_it_and_that_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, sleeping(1.0)) as group:
            client = await warm(group, 1.5)
            for k in range(4):
                client.send("m", str(k))
            await asyncio.sleep(0.1)
            group.die(1)
            await asyncio.sleep(3.0)
            words = [words for _, words in client.outcomes().values()]
            lost = [one for one in words if one != "ok"]
            assert len(words) == 5 and len(lost) == 2
            assert "replica 1, which the request was handed over to, has ended before it has answered" in lost[0]
            assert group.kernels[0].statistics("m")[0].fail.count == 2
            client.send("m", "after")
            client.send("m", "after all")
            await asyncio.sleep(3.0)
            assert client.outcome("after all")[1] == "ok"

    run(scenario())


def test_what_the_other_does_not_take_is_executed_here(tmp_path: Path) -> None:
    """As it has not the model, and as it is to stop. Nor is one asked that leaves."""

    async def scenario() -> None:
        async with two(tmp_path, sleeping(0.1)) as group:
            client = await warm(group, 0.15)
            group.kernels[1].exiting = True
            for k in range(4):
                client.send("m", str(k), deadline=group.kernels[0].clock() + 9.0)
            await asyncio.sleep(1.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"} and not group.executed()[1]
            group.kernels[1].exiting = False
            await asyncio.sleep(REFUSED_SECONDS)
            group.peers[1].leave()
            await asyncio.sleep(0.01)
            for k in range(4):
                client.send("m", f"late {k}")
            await asyncio.sleep(1.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"} and not group.executed()[1]

    run(scenario())


def test_nothing_that_was_handed_over_is_handed_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, sleeping(0.1)) as group:
            client = await warm(group, 0.15)
            for k in range(20):
                client.send("m", str(k))
            await asyncio.sleep(3.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            hands = [[form for form in group.wires[k][0].sent if isinstance(form, Hand)] for k in range(2)]
            assert len(hands[0]) == len(group.executed()[1]) > 5 and not hands[1]

    run(scenario())


DECOUPLED = BASE + "model_transaction_policy { decoupled: true }\n"


def test_responses_of_decoupled_models_come_in_their_order(tmp_path: Path) -> None:
    async def many(batch: Any) -> Any:
        request = batch.requests[0]
        kernel = request.model.kernel
        for k in range(3):
            await asyncio.sleep(0.1)
            kernel.send(request, answer(request, Y=[float(k)]), False)
        kernel.send(request, None, True)

    async def scenario() -> None:
        async with two(tmp_path, many, DECOUPLED) as group:
            client = await warm(group, 0.5)
            client.send("m", "here")
            client.send("m", "there")
            await asyncio.sleep(1.0)
            assert group.executed()[1] == ["there"]
            responses = [response for _, response, _ in client.answers["there"]]
            assert [None if one is None else float(one["Y"][0]) for one in responses] == [0.0, 1.0, 2.0, None]
            assert [final for _, _, final in client.answers["there"]] == [False, False, False, True]

    run(scenario())


def test_errors_of_the_other_are_told_as_they_are(tmp_path: Path) -> None:
    def fail(batch: Any) -> Any:
        raise ServingError(Code.NOT_FOUND, "no such thing")

    async def scenario() -> None:
        async with Two(tmp_path, {"m": BASE}, ({"m": sleeping(0.1)}, {"m": fail})) as group:
            client = await warm(group, 0.15)
            client.send("m", "here")
            client.send("m", "there")
            await asyncio.sleep(1.0)
            assert client.outcome("there")[1] == "no such thing"
            assert [kernel.statistics("m")[0].fail.count for kernel in group.kernels] == [0, 1]

    run(scenario())


#: What a model may answer that can't be written, or not be read: what it is -> response.
UNFIT: dict[str, Callable[[], InferenceResponse]] = {
    "a number": lambda: InferenceResponse([], None, {"a": 2**64}),
    "no text": lambda: InferenceResponse([], None, {"a": "\udcff"}),
    "a key": lambda: InferenceResponse([], None, {1: 2}),  # type: ignore[dict-item]
    "no array of it": lambda: InferenceResponse([Tensor("Y", "FP32", np.array(["x"], np.object_))]),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_response_that_cannot_be_handed_back_is_an_error(tmp_path: Path, what: str) -> None:
    """It costs nobody else anything: the other replica is asked again."""

    async def odd(batch: Any) -> Any:
        await asyncio.sleep(0.1)
        return [UNFIT[what]()]

    async def scenario() -> None:
        async with Two(tmp_path, {"m": BASE}, ({"m": sleeping(0.1)}, {"m": odd})) as group:
            client = await warm(group, 0.15)
            for again in ("", "again"):
                client.send("m", f"here{again}")
                client.send("m", f"there{again}")
                await asyncio.sleep(1.0)
                words = client.outcome(f"there{again}")[1]
                assert words.startswith("the response can't be handed back to the replica that was asked: "), words
            assert group.executed()[1] == ["there", "thereagain"]

    run(scenario())


@pytest.mark.parametrize("dtype", [">f4", np.int64, np.bool_])
def test_values_arrive_though_their_array_is_of_another_type(dtype: Any) -> None:
    """The model is warned of; alone, a replica passes on the values, too."""
    response = InferenceResponse([Tensor("Y", "FP32", np.array([1, 0], dtype))])
    head, body = answer_of(1, response, True, None, (0.0, 0, 0.0, 0.0))
    answer = read(head)
    assert isinstance(answer, Answered)
    back = response_of(answer, memoryview(b"".join(body)))
    assert back is not None and back["Y"].dtype == np.float32 and back["Y"].tolist() == [1.0, 0.0]


def test_the_text_of_an_error_may_be_anything() -> None:
    words = "no file '\udcff'"
    head, body = answer_of(1, InferenceResponse([], ServingError(Code.INTERNAL, words)), True, None, (0.0, 0, 0.0, 0.0))
    answer = read(head)
    assert isinstance(answer, Answered)
    back = response_of(answer, memoryview(b"".join(body)))
    assert back is not None and back.error is not None and back.error.message == "no file '\\udcff'"


def test_a_stop_waits_for_what_others_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, sleeping(1.0)) as group:
            client = await warm(group, 1.5)
            for k in range(4):
                client.send("m", str(k))
            await group.kernels[0].stop(10.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert len(group.executed()[1]) == 2

    run(scenario())


def test_a_stop_that_has_no_more_time_gives_up_what_others_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, sleeping(9.0)) as group:
            client = await warm(group, 10.0)
            for k in range(2):
                client.send("m", str(k))
            await group.kernels[0].stop(1.0)
            assert all("given up" in client.outcome(str(k))[1] for k in range(2))

    run(scenario())


def test_executions_on_the_loop_wait_where_they_can_be_seen(tmp_path: Path) -> None:
    """Else a burst would be executed as it is read, and nobody would know how much more there is."""

    async def scenario() -> None:
        clock = [0.0]

        def slow(batch: Any) -> Any:
            clock[0] += 0.002
            return echo(batch)

        async with two(tmp_path, slow) as group:
            for kernel in group.kernels:
                scheduler = kernel.model("m").scheduler
                time = kernel.loop.time
                for instance in scheduler.instances:
                    instance.clock = lambda time=time: time() + clock[0]  # type: ignore[misc]
            client = await warm(group)
            assert group.kernels[0].model("m").scheduler.direct is None
            for k in range(10):
                client.send("m", str(k))
            await asyncio.sleep(0.1)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert len(group.executed()[1]) == 5

    run(scenario())


def test_alone_a_kernel_has_no_stage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Kernel(write_repository(tmp_path, {"m": BASE}), plugins=[TestBackend({})]) as kernel:
            model = kernel.model("m")
            assert model.handover is None and model.enqueue == model.scheduler.enqueue

    run(scenario())


# -- sequences ---------------------------------------------------------------------------------------------------------

SEQUENCES = BASE + "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 64 } }\n"


class Summing:
    """Answers Y = the sum of all X of the sequence so far; one object is one replica's model."""

    def __init__(self) -> None:
        self.sums: dict[Any, float] = {}

    def __call__(self, batch: Any) -> Any:
        responses = []
        for request in batch.requests:
            id = request.correlation_id
            before = 0.0 if request.flags & 1 else self.sums[id]
            self.sums[id] = before + float(request.inputs["X"].array[0])
            responses.append(answer(request, Y=[self.sums[id]]))
        return responses


def sequences(folder: Path, count: int) -> Two:
    return Two(folder, {"m": SEQUENCES}, [{"m": Summing()} for _ in range(count)])


class Talk:
    """One sequence's client, who sends each request to another replica."""

    def __init__(self, group: Two, id: int) -> None:
        self.group = group
        self.id = id
        self.sum = 0.0
        self.clients = [Client(kernel) for kernel in group.kernels]
        self.count = 0

    async def say(self, value: float, flags: int = 0, to: int | None = None, soon: bool = False) -> str:
        """Send one; return "ok", or why not, after a while, or as `soon` as it is known. What is right is held to here."""
        self.count += 1
        client = self.clients[self.count % len(self.clients) if to is None else to]
        name = f"{self.id}-{self.count}"
        client.send("m", name, [value], correlation_id=self.id, flags=flags)
        await asyncio.sleep(0.0 if soon else 0.01)
        for _ in range(2000):
            if not soon or client.answers[name]:
                break
            await asyncio.sleep(0.00002)
        words = client.outcome(name)[1]
        if words == "ok":
            self.sum = value if flags & 1 else self.sum + value
            response = client.answers[name][-1][1]
            assert response is not None and float(response["Y"][0]) == self.sum
        return words


def test_a_sequence_may_be_sent_over_any_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sequences(tmp_path, 3) as group:
            talks = [Talk(group, id) for id in range(1, 21)]
            for flags in (1, 0, 0, 0, 2):
                for talk in talks:
                    assert await talk.say(talk.id, flags) == "ok"
            assert all(count > 0 for count in map(len, group.executed()))
            assert not any(kernel.model("m").scheduler.queue.sequences for kernel in group.kernels)
            unknown = await Talk(group, 99).say(1.0)
            assert "must specify the START flag on the first request of the sequence" in unknown

    run(scenario())


def test_sequences_of_one_that_dies_are_refused_and_begin_anew(tmp_path: Path) -> None:
    """And those of the others go on. With one that comes back, those that began meanwhile stay where they are."""

    async def scenario() -> None:
        async with sequences(tmp_path, 3) as group:
            talks = [Talk(group, id) for id in range(1, 31)]
            for talk in talks:
                assert await talk.say(1.0, 1) == "ok"
            its = set(group.backends[2].behaviours["m"].sums)  # type: ignore[attr-defined]
            assert 0 < len(its) < 30
            group.die(2)
            await asyncio.sleep(0.01)
            for talk in talks:
                talk.clients.pop()
                words = await talk.say(2.0)
                if talk.id in its:
                    assert "and the replica that would have had it has ended: it has to begin anew" in words
                    assert await talk.say(3.0, 1) == "ok"
                else:
                    assert words == "ok"

            # Another one comes in its place, which the hash gives some of those that are under way.
            kernel = Kernel(tmp_path / "models", plugins=[TestBackend({"m": Summing()})])
            kernel.open()
            peers = PeerTable(kernel, 2, 3, random.Random(1).random, Wire)
            kernel.supervision.peers = peers
            await kernel.start()
            group.kernels[2], group.peers[2] = kernel, peers
            names = ("r0", "r1")
            for k, name in enumerate(names):
                ends: list[Wire] = []
                group.peers[k].join("r3", 2, ends, name)  # type: ignore[arg-type]
                peers.join(name, k, ends, "r3")  # type: ignore[arg-type]
            await peers.introduce()
            await asyncio.sleep(0.01)
            moved = [talk for talk in talks if peers.owners.is_own(talk.id)]
            assert moved
            for talk in talks:
                talk.clients.append(Client(kernel))
                for _ in range(3):
                    assert await talk.say(4.0) == "ok"
                assert await talk.say(5.0, 2) == "ok"
            await asyncio.sleep(1.0)
            for talk in moved:  # over, and so forgotten by those who have kept them
                assert await talk.say(6.0, 1) == "ok"
            assert {talk.id for talk in moved} == set(kernel.model("m").scheduler.queue.ids)

    run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_that_is_begun_anew_while_a_replica_comes_is_alive_once(tmp_path: Path, seed: int) -> None:
    """Sums are right or refused, whichever replica hears of what first, though clients send as soon as they have an answer."""

    async def scenario() -> None:
        chance = random.Random(seed)
        async with sequences(tmp_path, 3) as group:
            talks = [Talk(group, id) for id in range(1, 41)]
            for talk in talks:
                assert await talk.say(1.0, 1) == "ok"
            group.die(2)
            await asyncio.sleep(0.05 if seed % 2 else SETTLED_SECONDS + 1.0)
            for talk in talks:
                talk.clients.pop()
                await talk.say(1.0, 1)

            kernel = Kernel(tmp_path / "models", plugins=[TestBackend({"m": Summing()})])
            kernel.open()
            peers = PeerTable(kernel, 2, 3, random.Random(1).random, Wire)
            kernel.supervision.peers = peers
            await kernel.start()
            group.kernels[2], group.peers[2] = kernel, peers
            counts = {"ok": 0}

            async def go_on(talk: Talk) -> None:
                for k in range(12):
                    await asyncio.sleep(chance.choice((0.0, 0.0, 0.00005, 0.0001, 0.0003, 0.001)))
                    flags = int(chance.random() < 0.4) + 2 * int(chance.random() < 0.3)
                    words = await talk.say(float(k), flags, chance.randrange(len(talk.clients)), soon=True)
                    counts[words] = counts.get(words, 0) + 1

            async def come() -> None:
                await asyncio.sleep(0.001)
                for k, name in enumerate(("r0", "r1")):
                    ends: list[Wire] = []
                    group.peers[k].join("r3", 2, ends, name)  # type: ignore[arg-type]
                    await asyncio.sleep(chance.choice((0.0, 0.0001, 0.0005)))
                    peers.join(name, k, ends, "r3")  # type: ignore[arg-type]
                await peers.introduce()
                for talk in talks:
                    talk.clients.append(Client(kernel))

            await asyncio.gather(come(), *map(go_on, talks))
            await asyncio.sleep(0.01)
            alive = [id for one in group.kernels for id in one.model("m").scheduler.queue.ids]
            assert len(alive) == len(set(alive))
            assert counts["ok"] > 250 and kernel.model("m").scheduler.queue.ids
            for talk in talks:  # whatever became of it, it can begin anew, and then goes on
                assert await talk.say(1.0, 1) == await talk.say(2.0) == await talk.say(3.0, 2) == "ok"

    run(scenario())


@pytest.mark.parametrize("wait", [0.0, 0.00005, 0.0001, 0.0002, 0.01])
def test_a_sequence_that_began_while_one_came_is_where_that_is_known(tmp_path: Path, wait: float) -> None:
    """The others don't know of the one that has come as a client does, who begins it anew there, and goes on elsewhere."""

    async def scenario() -> None:
        async with sequences(tmp_path, 2) as group:
            kernel = Kernel(tmp_path / "models", plugins=[TestBackend({"m": Summing()})])
            kernel.open()
            peers = PeerTable(kernel, 2, 3, random.Random(1).random, Wire)
            kernel.supervision.peers = peers
            await kernel.start()
            group.kernels.append(kernel)
            group.peers.append(peers)
            group.backends.append(group.backends[0])
            group.meet(2, (0, 1))
            await asyncio.sleep(0.0005)
            talks = [Talk(group, id) for id in range(1, 41)]
            for talk in talks:
                assert await talk.say(1.0, 1, 0, soon=True) == "ok"
            await peers.introduce()
            await asyncio.sleep(wait)

            async def go_on(talk: Talk) -> None:
                assert await talk.say(2.0, 1, 2, soon=True) == "ok"
                for to in (0, 1, 2, 0, 1, 2):
                    assert await talk.say(3.0, 0, to, soon=True) == "ok"

            await asyncio.gather(*map(go_on, talks))
            alive = [id for one in group.kernels for id in one.model("m").scheduler.queue.ids]
            assert sorted(alive) == list(range(1, 41))

    run(scenario())


@pytest.mark.parametrize("gap", [0.0, 0.00005, 0.001])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_sequences_of_one_id_the_one_that_began_later_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int], gap: float
) -> None:
    """What waits of the other is refused, whichever hears of it first."""

    async def scenario() -> None:
        async with Two(tmp_path, {"m": SEQUENCES}, [{"m": sleeping(1.0)}] * 2) as group:
            clients = [Client(kernel) for kernel in group.kernels]
            for peers in group.peers:
                monkeypatch.setattr(peers, "owner", lambda model, id: None)  # as if each thought that it is alone
            for k in order:
                clients[k].send("m", "first", correlation_id=7, flags=1)
                clients[k].send("m", "second", correlation_id=7)
                await asyncio.sleep(gap)
            await asyncio.sleep(5.0)
            outcomes = [client.outcomes() for client in clients]
            assert [each["first"][1] for each in outcomes] == ["ok", "ok"]
            (lost,) = [each["second"][1] for each in outcomes if each["second"][1] != "ok"]
            assert "sequence 7 of model 'm' has begun anew at replica " in lost
            assert sum(len(kernel.model("m").scheduler.queue.ids) for kernel in group.kernels) == 1

    run(scenario())


def test_one_that_leaves_keeps_its_sequences_and_gets_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sequences(tmp_path, 2) as group:
            talks = [Talk(group, id) for id in range(1, 21)]
            for talk in talks:
                assert await talk.say(1.0, 1) == "ok"
            group.peers[1].leave()
            await asyncio.sleep(0.01)
            its = list(group.kernels[1].model("m").scheduler.queue.ids)
            assert 0 < len(its) < 20
            for talk in talks:
                assert await talk.say(1.0) == await talk.say(1.0) == "ok"
            for id in range(30, 50):
                assert await Talk(group, id).say(1.0, 1) == "ok"
            assert list(group.kernels[1].model("m").scheduler.queue.ids) == its

    run(scenario())


# -- models that live at one replica -----------------------------------------------------------------------------------

ONE = BASE + 'parameters { key: "replicate" value { string_value: "one" } }\n'


def test_a_model_lives_at_one_replica_and_moves_when_that_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Two(tmp_path, {"m": ONE}, [{"m": echo}] * 3) as group:
            made = [len(backend.executions("initialize")) for backend in group.backends]
            assert sorted(made) == [0, 0, 1]
            home = made.index(1)
            clients = [Client(kernel) for kernel in group.kernels]
            for k in range(9):
                clients[k % 3].send("m", str(k))
            await asyncio.sleep(0.1)
            assert [len(ids) for ids in group.executed()] == [9 * one for one in made]
            assert all(kernel.is_model_ready("m") and kernel.is_ready() for kernel in group.kernels)

            group.die(home)
            group.peers[home].close()
            others = [k for k in range(3) if k != home]
            await asyncio.sleep(0.01)
            for k in others:
                clients[k].send("m", "soon")
            await asyncio.sleep(2.0)
            moved = [k for k in others if group.backends[k].executions("initialize")]
            assert len(moved) == 1
            for k in others:
                clients[k].send("m", "again")
            await asyncio.sleep(0.1)
            assert all(clients[k].outcome("again")[1] == "ok" for k in others)
            assert group.executed()[moved[0]] == ["again"] * 2
            assert all("try again later" in clients[k].outcome("soon")[1] for k in others)

    run(scenario())


class _Answer(asyncio.Future[InferenceResponse]):
    """What an execution awaits that has made a call. `request`: the call."""

    request: InferenceRequest


def calling(*models: str, wait: float = 0.0, depth: int = 99, looks: bool = False) -> Behaviour:
    """Return a behaviour that, after `wait` seconds, calls models, one after the other, wherever they live; as a call fails, it
    fails. `depth`: what so many calls have led to calls none. `looks`: calls are looked at where they are made, as of threads.
    """

    async def execute(batch: Batch) -> Any:
        await asyncio.sleep(wait)
        for model in models:
            request = batch.requests[0]
            if request.id.count(">") >= depth:
                break
            future = _Answer()

            def respond(response: Any, final: bool, future: _Answer = future) -> None:
                future.set_result(response)

            call = future.request = InferenceRequest(model, dict(request.inputs), respond, id=f"{request.id}>", parent=batch)
            request.model.kernel.submit(call)
            if looks:
                request.model.kernel.supervision.lookout.keep_looking_at(call)
            response = await future
            if response.error is not None:
                return [response]
        return [answer(request) for request in batch.requests]

    return execute


def living(count: int, at: int) -> Iterable[str]:
    """Give names of models that live at replica `at` of so many."""
    return (name for k in itertools.count() if rendezvous({*map(str, range(count))}, name := f"m{k}") == str(at))


def circle(folder: Path, names: Sequence[str], behaviours: dict[str, Behaviour], config: str = ONE, count: int = 2) -> Two:
    return Two(folder, dict.fromkeys(names, config), [behaviours] * count)


@pytest.mark.parametrize("looks", [False, True])
def test_models_at_different_replicas_that_call_each_other_in_a_circle_are_refused(tmp_path: Path, looks: bool) -> None:
    """As those of one process; whichever replica was asked, at once and not at the deadline."""

    async def scenario() -> None:
        a, b = next(iter(living(2, 0))), next(iter(living(2, 1)))
        async with circle(tmp_path, [a, b], {a: calling(b, looks=looks), b: calling(a, looks=looks)}) as group:
            for kernel in group.kernels:
                client = Client(kernel)
                for first, second in ((a, b), (b, a)):
                    client.send(first, "it", deadline=kernel.clock() + 60.0)
                    await asyncio.sleep(0.2)
                    words = client.outcome("it")[1]
                    if looks:  # the first of the two calls may be found sooner
                        assert "could only wait for itself: " in words
                        assert f"({first} -> {second} -> {first})" in words or f"({second} -> {first} -> {second})" in words
                    else:
                        assert f"request to model '{first}' could only wait for itself: " in words
                        assert f"({first} -> {second} -> {first}); give '{first}' more instances" in words
                    client.answers.clear()
                assert not any(one.inflight() for one in group.kernels)

    run(scenario())


def test_two_calls_at_different_replicas_that_wait_for_each_other(tmp_path: Path) -> None:
    """None is made by the other. One of them is refused, and so the other goes on."""

    async def scenario() -> None:
        a, b, c = next(iter(living(3, 0))), next(iter(living(3, 1))), next(iter(living(3, 2)))
        behaviours = {one: calling(other, wait=1.0, depth=1) for one, other in ((a, b), (b, c), (c, a))}
        async with circle(tmp_path, [a, b, c], behaviours, count=3) as group:
            client = Client(group.kernels[0])
            for name in (a, b, c):
                client.send(name, name)
            await asyncio.sleep(10.0)
            words = [words for _, words in client.outcomes().values() if words != "ok"]
            assert len(words) == 1 and f"request to model '{a}' could only wait for itself: " in words[0]
            assert f"({a} -> {b} -> {c} -> {a})" in words[0]
            assert max(when for when, _ in client.outcomes().values()) < 4.5

    run(scenario())


def test_a_circle_with_others_of_one_replica_in_it_is_spelt_out(tmp_path: Path) -> None:
    """And who only waits behind it is not refused for it."""

    async def scenario() -> None:
        (a, c), b = itertools.islice(living(2, 0), 2), next(iter(living(2, 1)))
        async with circle(tmp_path, [a, b, c], {a: calling(c), c: calling(b), b: calling(a, wait=0.5, depth=3)}) as group:
            client = Client(group.kernels[1])
            client.send(a, "circle")
            await asyncio.sleep(0.1)
            client.send(a, "behind>>>")
            await asyncio.sleep(5.0)
            assert f"({a} -> {c} -> {b} -> {a})" in client.outcome("circle")[1]
            assert client.outcome("behind>>>")[1] == "ok"

    run(scenario())


def test_calls_that_come_back_are_served_where_that_can_be(tmp_path: Path) -> None:
    """By another instance, or after an execution that waits for nobody."""

    async def scenario() -> None:
        a, b = next(iter(living(2, 0))), next(iter(living(2, 1)))
        more = ONE.replace("count: 1", "count: 2")
        async with circle(tmp_path, [a, b], {a: calling(b, depth=1), b: calling(a, wait=9.0, depth=2)}, more) as group:
            clients = [Client(kernel) for kernel in group.kernels]
            clients[1].send(a, "it")
            for k, client in enumerate(clients):
                client.send(b, f"{k}>>")
            await asyncio.sleep(60.0)
            assert {words for client in clients for _, words in client.outcomes().values()} == {"ok"}

    run(scenario())


@pytest.mark.parametrize("after", [0.0, 0.02, 0.0201, 0.0202, 0.1])
def test_a_replica_that_dies_while_a_circle_is_looked_for(tmp_path: Path, after: float) -> None:
    async def scenario() -> None:
        a, b, c = next(iter(living(3, 0))), next(iter(living(3, 1))), next(iter(living(3, 2)))
        async with circle(tmp_path, [a, b, c], {a: calling(b), b: calling(c), c: calling(a)}, count=3) as group:
            client = Client(group.kernels[0])
            client.send(a, "it")
            await asyncio.sleep(after)
            group.die(2)
            await asyncio.sleep(5.0)
            words = client.outcome("it")[1]
            whys = ("which the request was handed over to, has ended", "only wait for itself", "try again later")
            assert any(why in words for why in whys)

    run(scenario())


def test_a_model_leaves_one_that_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Two(tmp_path, {"m": ONE}, [{"m": sleeping(0.1)}] * 2) as group:
            home = 0 if group.backends[0].executions("initialize") else 1
            clients = [Client(kernel) for kernel in group.kernels]
            for k in range(2):
                clients[k].send("m", f"before {k}")
            group.peers[home].leave()
            await asyncio.sleep(2.0)
            for k in range(2):
                clients[k].send("m", f"after {k}")
            await asyncio.sleep(1.0)
            assert {words for client in clients for _, words in client.outcomes().values()} == {"ok"}
            assert sorted(group.executed()[home]) == ["before 0", "before 1"]
            assert len(group.backends[home].executions("finalize")) == 1

    run(scenario())

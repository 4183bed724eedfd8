"""What the supervisor and a replica say to each other: one record for each thing."""

from __future__ import annotations

import msgspec

__all__ = [
    "Answer",
    "Answers",
    "Ask",
    "Become",
    "Bind",
    "Bound",
    "Leave",
    "Load",
    "Loaded",
    "Meet",
    "Message",
    "Now",
    "Number",
    "Open",
    "Opened",
    "OthersReady",
    "Ping",
    "Pong",
    "Prepare",
    "Ready",
    "Replace",
    "Replaced",
    "Told",
    "Waiting",
    "Wanted",
]


class Bind(msgspec.Struct, tag=True):
    """Replica: a front end wants to listen. `id` is its own, and comes back. Others as Endpoint and Listener say."""

    id: int
    service: str
    address: str
    port: int
    reuse_port: bool


class Bound(msgspec.Struct, tag=True):
    """Supervisor: so many sockets come along, or none and why. `errno`: 0 for none."""

    id: int
    sockets: int
    error: str = ""
    errno: int = 0


class Loaded(msgspec.Struct, tag=True):
    """Replica: all models are there that are to be at the start. `modules`: what a spare is to import, told by one of them;
    `ahead`: functions that it is to call, as `module:function`.
    """

    modules: list[str] = []
    ahead: list[str] = []


class Open(msgspec.Struct, tag=True):
    """Supervisor: accept connections."""


class Opened(msgspec.Struct, tag=True):
    """Replica: connections are accepted."""


class Meet(msgspec.Struct, tag=True):
    """Supervisor: replica `index` is there, at the other end of the socket that comes along. `name`: of all that ever were;
    `own`: that of who is told.
    """

    index: int
    name: str
    own: str


class Leave(msgspec.Struct, tag=True):
    """Supervisor: another one serves in its place; finish what there is, and end."""


class Now(msgspec.Struct, tag=True):
    """Supervisor: whoever is still there ends at once."""


class Ask(msgspec.Struct, tag=True):
    """Replica: something concerns others, too. `id` is its own, and comes back.

    `key`: "" for a question, which goes to the others. Else a change, which goes to all, itself among them, in one order for all
    changes; whoever begins later is told it, too, unless another one of the same key has come since. `forget`: nobody has to be
    told later, neither of this one nor of those before it; a key that ends in ":" stands for all that begin with it.
    """

    id: int
    topic: str
    data: bytes
    key: str = ""
    forget: bool = False


class Wanted(msgspec.Struct, tag=True):
    """Supervisor: do what was asked, and tell what came of it."""

    id: int
    topic: str
    data: bytes


class Told(msgspec.Struct, tag=True):
    """Replica: what came of what was asked: `data`, or an error: `code` is the name of one, "" for none."""

    id: int
    data: bytes = b""
    code: str = ""
    message: str = ""


class Answer(msgspec.Struct):
    """What came of it at replica `index`, as Told says."""

    index: int
    data: bytes = b""
    code: str = ""
    message: str = ""


class Answers(msgspec.Struct, tag=True):
    """Supervisor: all have told, or are gone."""

    id: int
    answers: list[Answer]


class Ready(msgspec.Struct, tag=True):
    """Replica: whether it is ready has changed."""

    ready: bool


class OthersReady(msgspec.Struct, tag=True):
    """Supervisor: whether all others that serve are ready has changed."""

    ready: bool


class Load(msgspec.Struct, tag=True):
    """Replica: which share of what it can do it does, 0.0 to 1.0, and for how many seconds its oldest request waits in vain."""

    share: float
    queue_age: float


class Number(msgspec.Struct, tag=True):
    """Supervisor: the number of replicas follows the load: so many serve, and are to, between these; why, in words."""

    current: int
    wanted: int
    least: int
    most: int
    reason: str


class Ping(msgspec.Struct, tag=True):
    """Supervisor: give a sign of life."""


class Pong(msgspec.Struct, tag=True):
    """Replica or spare: here it is."""


class Prepare(msgspec.Struct, tag=True):
    """Supervisor: the spare is to import these modules, and to call these functions, as `module:function`."""

    modules: list[str]


class Waiting(msgspec.Struct, tag=True):
    """Spare: all is imported, and it waits."""


class Become(msgspec.Struct, tag=True):
    """Supervisor: the spare is replica `index` from now on."""

    index: int


class Replace(msgspec.Struct, tag=True):
    """Replica: replace all, itself the last, one after another. `id` is its own, and comes back."""

    id: int


class Replaced(msgspec.Struct, tag=True):
    """Supervisor: all are replaced but the one that is told, which is about to leave; or why not: `code` as in Told.
    `count`: how many they are.
    """

    id: int
    count: int
    code: str = ""
    message: str = ""


Message = (
    Answers
    | Ask
    | Become
    | Bind
    | Bound
    | Leave
    | Load
    | Loaded
    | Meet
    | Now
    | Number
    | Open
    | Opened
    | OthersReady
    | Ping
    | Pong
    | Prepare
    | Ready
    | Replace
    | Replaced
    | Told
    | Waiting
    | Wanted
)

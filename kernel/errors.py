"""What goes wrong, and for whose sake: one exception class, one enum of codes.

The codes are Triton's. Which HTTP status or gRPC code stands for one of them is the front ends' business, never this file's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

__all__ = [
    "Code",
    "Denial",
    "Denied",
    "ModelError",
    "NotLoaded",
    "Overloaded",
    "Reason",
    "ServingError",
    "clipped",
    "how_to_install",
    "shortened",
]

#: How much is told of a text that a client has sent, such as an id; characters.
SHOWN = 256
#: How long a message may be that has such a text in it; characters.
LONGEST = 32768


def how_to_install(extra: str) -> str:
    """Return the commands that install an extra of this project: of a release, and in a checkout."""
    return f"pip install 'kernel-serve[{extra}]', or in a checkout pip install -e '.[{extra}]'"


def clipped(text: str, limit: int = SHOWN) -> str:
    """Return a text from outside as it may stand in a message or in the log: on one line, and not without end.

    What can't be printed, such as control characters and what ends a line for some readers (U+0085, U+2028), is escaped.
    """
    short = text[:limit]
    if not short.isprintable():
        short = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in short)
    return short if len(text) <= limit else f"{short}… ({len(text)} characters)"


def shortened(text: str, limit: int = LONGEST) -> str:
    """Return a text without its middle where it is longer than `limit`: what it is about comes first, the place last."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters) … {text[-half:]}"


class Code(enum.Enum):
    """The error codes of Triton's core, in its order (`pb_utils.TritonError` numbers them 0 to 7). In brackets, what clients get
    for one: the HTTP status, and gRPC's.
    """

    UNKNOWN = "Unknown"  # a model, or a server that it asks, says no more of its error (400, UNKNOWN)
    INTERNAL = "Internal"  # a mistake of the server or of a model: also what model code raises (500, INTERNAL)
    NOT_FOUND = "Not found"  # there is no model, version, region or file of that name (404, NOT_FOUND)
    INVALID_ARG = "Invalid argument"  # the client's mistake: the request doesn't fit this model, or any (400, INVALID_ARGUMENT)
    #: Not now: the model is not ready, its queue is full, a time-out or deadline has passed, the server stops (503, UNAVAILABLE).
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"  # this server, or this model, can't do that at all (501, UNIMPLEMENTED)
    ALREADY_EXISTS = "Already exists"  # something of that name is there, such as a region (400, ALREADY_EXISTS)
    CANCELLED = "Cancelled"  # nobody waits for the answer any more (400, CANCELLED)


class Reason(enum.Enum):
    """Why an accepted request failed, as the statistics and metrics count it."""

    REJECTED = "REJECTED"  # it never began: its queue was full, or its time-out or deadline passed there
    CANCELED = "CANCELED"  # nobody waited for the answer any more, or its deadline passed while it was executed
    BACKEND = "BACKEND"  # its execution has answered with an error
    OTHER = "OTHER"  # anything else, such as a stop of the server while it waited


class ServingError(Exception):
    """A request or an operation that can't be served.

    `code` says of which kind, `message` says it in a sentence that names the model, what came and what was wanted; one without
    end loses its middle.
    `reason` is how the statistics count it where a request had been accepted.
    """

    def __init__(self, code: Code, message: str, reason: Reason = Reason.OTHER) -> None:
        self.code = code
        self.message = message if len(message) <= LONGEST else shortened(message)
        self.reason = reason
        super().__init__(self.message)

    def __repr__(self) -> str:
        return f"ServingError({self.code.name}, {self.message!r})"

    def __reduce__(self) -> tuple[type[ServingError], tuple[Code, str, Reason]]:
        return ServingError, (self.code, self.message, self.reason)


class Denial(enum.Enum):
    """Why a Gate does not let a request pass."""

    UNKNOWN = "unknown"  # who asks has shown nothing, or nothing that is known: HTTP's 401, gRPC's UNAUTHENTICATED
    FORBIDDEN = "forbidden"  # it is known who asks, and he may not: 403, PERMISSION_DENIED
    EXHAUSTED = "exhausted"  # he may, but not so often or so much at a time: 429, RESOURCE_EXHAUSTED


class Denied(ServingError):
    """A Gate does not let a request pass; `message` says why, in a sentence.

    `denial`: of which kind that is. `retry_after`: seconds after which it may be worth another try, 0.0: nobody knows.
    """

    def __init__(self, denial: Denial, message: str, retry_after: float = 0.0) -> None:
        super().__init__(Code.UNAVAILABLE, message)
        self.denial = denial
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[Denied], tuple[Denial, str, float]]:  # type: ignore[override]
        return Denied, (self.denial, self.message, self.retry_after)


class Overloaded(ServingError):
    """A request that is not accepted since there is too much to do: the same one may be sent again a little later. `message` says
    what there is too much of. Code UNAVAILABLE: HTTP's 503 with Retry-After (or 429: `--overload-status`), gRPC's UNAVAILABLE.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message, Reason.REJECTED)

    def __reduce__(self) -> tuple[type[Overloaded], tuple[str]]:  # type: ignore[override]
        return Overloaded, (self.message,)


class NotLoaded(ServingError):
    """A model is not there, and is loaded where somebody waits for it (control mode `on-demand`).

    `wait`: after `wait(then, waits, called)` on the loop, `then(error)` is called there, with None once the model serves, else
    with why it could not be loaded; unless `waits()` is False by then, whereupon both are forgotten, soon. `called`: a model
    makes the call. Who does not wait takes this for what `message` says: UNAVAILABLE.
    """

    def __init__(
        self, message: str, wait: Callable[[Callable[[ServingError | None], None], Callable[[], bool], bool], None]
    ) -> None:
        super().__init__(Code.UNAVAILABLE, message)
        self.wait = wait


#: A frame of model code: file, line, function, and bytes of the line before the place, None where that is not known.
Frame = tuple[str, int, str, "int | None"]


class ModelError(Exception):
    """What model code has raised in another process: stands there as the `__cause__` of a ServingError, and has its own.

    `kind`: the name of its class; `text`: what it said. `frames`: of the model and of what it called, innermost first. `at`: of
    a SyntaxError, the (file, line, column) that can't be read, counted from 1.
    """

    def __init__(
        self, kind: str, text: str, frames: Sequence[Frame] = (), at: tuple[str, int | None, int | None] | None = None
    ) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.frames = tuple(frames)
        self.at = at

    @classmethod
    def of(
        cls, chain: Sequence[tuple[str, str, Sequence[Frame], tuple[str, int | None, int | None] | None]]
    ) -> ModelError | None:
        """Return the first of a chain of which each was caused by the next; None for an empty one."""
        error: ModelError | None = None
        for kind, text, frames, at in reversed(chain):
            cause, error = error, cls(kind, text, frames, at)
            error.__cause__ = cause
        return error

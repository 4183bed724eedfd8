"""What is asked of both servers by ModelStreamInfer, and who goes away before the answer: sequences of messages, in order.

The cases of one list after another; those about cancellation stand on the ones before them, since a model tells afterwards.
"""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from .messages_grpc import X, ask, infer, request, stream, typed
from .wire_grpc import After, Call, CancelAfter, Pause

__all__ = ["CANCELLATION", "STREAMS"]

EMPTY_FINAL = {"triton_enable_empty_final_response": True}


def gen(count: int, **given: Any) -> Any:
    """As many responses as `count`, then a final flag alone."""
    return request("decoupled", [typed("N", "INT32", [1], [count])], **given)


def talk(script: str, **given: Any) -> Any:
    """A response for each word; `last-WORD` is sent with the final flag."""
    return request("talk", [typed("SCRIPT", "BYTES", [1], [script.encode()])], **given)


def behave(what: str, **given: Any) -> Any:
    return request("behave", [typed("WHAT", "BYTES", [1], [what.encode()])], **given)


def both(name: str, message: Any, *more: Any) -> list[Call]:
    """Without and with the empty final response."""
    asked = type(message).FromString(message.SerializeToString())
    asked.parameters["triton_enable_empty_final_response"].bool_param = True
    return [stream(name, message, *more), stream(f"{name}, empty final", asked, *more)]


NORMAL = request("batch8", [X], id="n")

STREAMS = [
    stream("nothing is sent"),
    stream("a normal model", NORMAL),
    *both("a normal model, no id", request("batch8", [X])),
    stream("three requests in order", *(request("batch8", [X], id=name) for name in "abc")),
    *both("two responses", gen(2, id="g")),
    *both("one response", gen(1)),
    *both("no response", gen(0, id="z")),
    *both("error and final", talk("last-error:NOT_FOUND", id="e")),
    *both("last response with final", talk("a last-b", id="l")),
    *both("an error in the middle", talk("a error:UNAVAILABLE b", id="m")),
    *both("an error first", talk("error", id="m")),
    *both("a response without outputs", talk("nothing")),
    stream("two outputs", talk("both last-both")),
    stream("FP16", talk("half")),
    stream("an empty output", talk("empty")),
    stream("the model raises", behave("raise_value_error", id="r")),
    stream("the model raises, then a normal one", behave("raise_value_error", id="r"), NORMAL),
    stream("a decoupled model raises", talk("raise", id="r")),
    stream("a decoupled model raises after a response", talk("a raise", id="r")),
    *(
        stream(f"behave: {what}", behave(what, id="b"))
        for what in (
            "INTERNAL",
            "CANCELLED",
            "UNSUPPORTED",
            "nothing",
            "send",
            "send_at_once",
            "send_error",
            "return_too_few",
        )
    ),
    stream("unknown model, then a normal one", request("nope", [X], id="n1"), After(1), NORMAL),
    stream("unknown version, then a normal one", request("multi", [X], version="2", id="v"), After(1), NORMAL),
    stream("a version that is a word", request("multi", [X], version="x", id="v")),
    stream(
        "bad shape, then a normal one", request("batch8", [typed("X", "FP32", [2], [1, 2])], id="b1"), After(1), NORMAL
    ),
    stream(
        "a normal one, then bad shapes",
        NORMAL,
        request("batch8", [typed("X", "FP32", [2], [1, 2])], id="b1"),
        request("batch8", [typed("X", "FP32", [3], [1, 2, 3])]),
    ),
    stream("bad parameter", request("batch8", [X], id="p", triton_x=1), After(1), NORMAL),
    stream(
        "bad parameter to a decoupled model", gen(1, id="p", triton_enable_empty_final_response=1), After(1), gen(1)
    ),
    stream(
        "bad shape to a decoupled model",
        request("decoupled", [typed("N", "INT32", [2], [1, 2])], id="d"),
        After(1),
        gen(1),
    ),
    stream("unknown output", request("batch8", [X], ["N"], id="o")),
    stream("no data", request("batch8", [typed("X", "FP32", [1, 2], [])], id="o")),
    stream("an unknown model, empty final", request("nope", [X], id="n", **EMPTY_FINAL)),
    stream("an empty message", b""),
    stream("bytes that are no message, then a normal one", b"\xff\xff\xff", NORMAL),
    stream("parameters reach the model", request("curious", [typed("X", "FP32", [1, 1], [1])], ["REQUEST"], a=1)),
    stream("a decoupled one, then a normal one", gen(2, id="g"), After(2), NORMAL),
    stream("two decoupled ones", gen(2, id="1"), After(2), gen(1, id="2")),
    stream("classes", request("batch8", [X], [])),
    stream("an ensemble", request("ensemble", [X], id="e")),
    stream("an ensemble fails", request("ensemble_failing", [typed("WHAT", "BYTES", [1], [b"NOT_FOUND"])], id="f")),
    stream("errors as the stream's status", request("nope", [X], id="n"), metadata=(("triton_grpc_error", "true"),)),
    stream(
        "errors as the stream's status, from a model", behave("UNAVAILABLE"), metadata=(("triton_grpc_error", "true"),)
    ),
    stream("gzip", NORMAL, compression=grpc.Compression.Gzip),
]


def watch(what: str, model: str = "watch", **given: Any) -> Any:
    return request(model, [typed("WHAT", "BYTES", [1, 1] if model == "watch" else [1], [what.encode()])], **given)


def look(name: str) -> Call:
    return infer(name, "watch", [typed("WHAT", "BYTES", [1, 1], [b"look"])])


def look_again(name: str) -> Call:
    return stream(name, watch("look", "watch_stream"))


#: Durations are a matter of chance.
CHANCE = (r".*\.ns", r".*last_inference")


def counted(name: str) -> Call:
    return ask(name, "ModelStatistics", pb.ModelStatisticsRequest(name="watch"), mask=CHANCE, wait_s=0.1)


CANCELLATION = [
    look("watch: at first"),
    infer("watch: the client cancels", "watch", watch("wait").inputs, call={"cancel_s": 0.9}),
    look("watch: seen after the client has cancelled"),
    infer("watch: a deadline", "watch", watch("wait").inputs, call={"timeout_s": 0.9}),
    look("watch: seen after the deadline"),
    stream("watch: the stream is cancelled", watch("wait"), CancelAfter(0, 0.9)),
    look("watch: seen after the stream was cancelled"),
    stream("watch: the stream's deadline", watch("wait"), After(1), timeout_s=0.9),
    look("watch: seen after the stream's deadline"),
    counted("watch: counted before one is queued"),
    stream("watch: cancelled, one of two queued", watch("wait"), watch("never"), CancelAfter(0, 0.9)),
    look("watch: seen after one of two was queued"),
    counted("watch: counted after one was queued"),
    stream("watch: one too many for the queue", watch("nap"), Pause(0.1), watch("a"), watch("b"), watch("c", id="c")),
    stream("watch: too late in the queue", watch("nap"), Pause(0.1), watch("a", id="a", timeout=100_000)),
    look("watch: seen after the queue was full"),
    counted("watch: counted after the queue was full"),
    stream("watch: a decoupled stream is cancelled", watch("wait", "watch_stream"), CancelAfter(1, 0.1)),
    look_again("watch: seen by the decoupled one"),
    stream("watch: a decoupled stream's deadline", watch("wait", "watch_stream"), After(2), timeout_s=0.3),
    look_again("watch: seen by the decoupled one after its deadline"),
]

"""Streams: what is asked and which messages come, by generate_stream over HTTP and ModelStreamInfer over gRPC.

A message is what it says, or the words of an error. Whether it is the last one only gRPC tells; so does an empty last message,
where it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .asks import Ask, Tensor
from .words import missing

__all__ = ["STREAMS", "Failed", "Said", "Stream"]


@dataclass(frozen=True)
class Said:
    """A response: output -> values. `final`: what gRPC says about it."""

    outputs: dict[str, tuple[Any, ...]]
    final: bool = False


@dataclass(frozen=True)
class Failed:
    """An error. `code`: what it is where it comes first over HTTP. `final` None: it never came to an execution."""

    words: str
    code: str = ""
    final: bool | None = None


@dataclass(frozen=True)
class Stream:
    """A request and its messages. `flag`: whether a final flag alone ends it, which gRPC sends on demand as an empty message.

    `http`: other messages over HTTP, None where it can't be asked there.
    """

    name: str
    ask: Ask
    messages: tuple[Said | Failed, ...]
    flag: bool = False
    http: tuple[Said | Failed, ...] | None = ()


def talk(name: str, script: str, *messages: Said | Failed, id: str = "", **more: Any) -> Stream:
    """Ask the model that plays a script; unless its last word comes with the final flag, the flag comes alone."""
    ask = Ask("talk", (Tensor("SCRIPT", "BYTES", (1,), (script.encode(),)),), id=id)
    ends = bool(messages) and messages[-1].final is True
    return Stream(name, ask, messages, more.pop("flag", not ends), **more)


def word(text: str, final: bool = False) -> Said:
    return Said({"WORD": (text.encode(),)}, final)


def behave(name: str, what: str, *messages: Said | Failed) -> Stream:
    return Stream(name, Ask("behave", (Tensor("WHAT", "BYTES", (1,), (what.encode(),)),), id="b"), messages)


RAISED = "Failed to process the request(s) for model '{}_0', message: ValueError: {}\n\nAt:\n..."

X = Tensor("X", "FP32", (1, 2), (1.0, 2.0))
Y = Said({"Y": (1.0, 2.0)}, True)

STREAMS = [
    Stream("a normal model", Ask("batch8", (X,), id="n"), (Y,)),
    Stream(
        "an ensemble",
        Ask("ensemble", (X,)),
        (Y,),
        http=(Said({"Y": (1.0, 2.0), "sequence_id": (0,), "sequence_start": (False,), "sequence_end": (False,)}),),
    ),
    talk("one response", "hello", word("hello")),
    talk("three responses", "a b c", word("a"), word("b"), word("c"), id="three"),
    talk("no response", ""),
    talk("last response with the final flag", "a last-b", word("a"), word("b", True)),
    talk("an error at the end", "a last-error:NOT_FOUND", word("a"), Failed("an error:NOT_FOUND", final=True)),
    talk("nothing but an error", "last-error:NOT_FOUND", Failed("an error:NOT_FOUND", "NOT_FOUND", True)),
    talk(
        "an error in the middle",
        "a error:UNAVAILABLE b",
        word("a"),
        Failed("an error:UNAVAILABLE", final=False),
        word("b"),
    ),
    talk("an error first", "error:UNAVAILABLE b", Failed("an error:UNAVAILABLE", "UNAVAILABLE", False), word("b")),
    talk("no outputs", "nothing", Said({})),
    talk("two outputs", "both", Said({"WORD": (b"x", b"y"), "ALSO": (0.5,)})),
    talk("an empty output", "empty", Said({"ALSO": ()})),
    talk("a matrix", "grid", Said({"ALSO": (1.0, 2.0, 3.0, 4.0)})),
    talk(
        "FP16",
        "a half",
        word("a"),
        Said({"HALF": (1.5,)}),
        http=(
            word("a"),
            Failed("sending FP16 data via JSON is not supported. Please use the binary data format for output..."),
        ),
    ),
    talk(
        "the model raises", "a raise", word("a"), Failed(RAISED.format("talk", "no more words"), final=True), flag=False
    ),
    behave(
        "a normal model raises", "raise_value_error", Failed(RAISED.format("behave", "wrong value"), "INTERNAL", True)
    ),
    behave("a normal model answers an error", "UNSUPPORTED", Failed('a UNSUPPORTED "error"', "UNSUPPORTED", True)),
    behave("a normal model answers nothing", "nothing", Said({}, True)),
    Stream(
        "unknown model",
        Ask("nope", (X,), id="n1"),
        (Failed("Request for unknown model: 'nope' is not found", "NOT_FOUND"),),
    ),
    Stream(
        "unknown version",
        Ask("multi", (X,), version="2"),
        (Failed("Request for unknown model: 'multi' version 2 is not found", "NOT_FOUND"),),
    ),
    Stream(
        "an input is missing",
        Ask("two", (Tensor("A", "INT32", (1, 2), (1, 2)),), id="m"),
        (
            Failed(
                "[request id: m] " + missing("2 inputs but got 1 inputs", "['A']", "['B']", "two"),
                "INVALID_ARG",
            ),
        ),
    ),
    Stream(
        "wrong shape",
        Ask("multi", (Tensor("X", "FP32", (3,), (1.0, 2.0, 3.0)),), id="b1"),
        (Failed("[request id: b1] unexpected shape for input 'X' for model 'multi'. Expected [2], got [3]. "),),
        http=(Failed("The schema can not convert input 'X' to tensor with proper shape", "INVALID_ARG"),),
    ),
]

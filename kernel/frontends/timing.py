"""What a request's time went to, as Server-Timing says it: a header over HTTP, a trailer over gRPC. Pure."""

from __future__ import annotations

from kernel.observability import Explanation

__all__ = ["server_timing"]

#: How long the value may become, and a description in it, in characters.
LONGEST = 2000
LONGEST_WORDS = 200

#: What stands for characters that a description can't have: controls, the two that quoting has, and one that is not ASCII.
SHOWN_AS = {**dict.fromkeys([*range(32), 127], " "), ord("\\"): "/", ord('"'): "'", ord("µ"): "u"}


def server_timing(explanation: Explanation) -> bytes:
    """Return the value of the field Server-Timing (W3C): what the time went to, in milliseconds, with the words; ASCII, at most
    2000 bytes.
    """
    entries = [("total", explanation.seconds, explanation.state)]
    entries += [(one.kind, one.seconds, one.words) for one in explanation.intervals]
    told = ""
    for name, seconds, words in entries:
        shown = words[:LONGEST_WORDS].translate(SHOWN_AS).encode("ascii", "replace").decode()
        entry = f'{name};dur={seconds * 1e3:.3f};desc="{shown}"'
        if len(told) + len(entry) > LONGEST:
            break
        told += f", {entry}" if told else entry
    return told.encode()

"""Requests on a file: recorded while they are served, read, and compared with what else answers them. Docs: docs/record.md.

Takes its records from the history and from requests as they pass; no request waits for it, and none fails of it.
"""

from __future__ import annotations

from kernel.recording.form import RecordedError, RecordedRequest, Told
from kernel.recording.reading import Recording, is_recording, read_recording
from kernel.recording.recorder import Recorder, RecordOptions
from kernel.recording.redaction import Redactor, hashing

__all__ = [
    "RecordOptions",
    "RecordedError",
    "RecordedRequest",
    "Recorder",
    "Recording",
    "Redactor",
    "Told",
    "hashing",
    "is_recording",
    "read_recording",
]

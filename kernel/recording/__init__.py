"""Requests on a file: recorded while they are served, read, and compared with what else answers them. Docs: docs/record.md.

Takes its records from the history and from requests as they pass; no request waits for it, and none fails of it.
"""

from __future__ import annotations

from kernel.recording.comparing import Difference, Tolerance, differences
from kernel.recording.exporting import export_input_data
from kernel.recording.form import Placed, RecordedError, RecordedRequest, Told
from kernel.recording.grpc_form import code_of, message_of, outputs_of, streamed_of
from kernel.recording.reading import Recording, is_recording, read_recording
from kernel.recording.recorder import Recorder, RecordOptions
from kernel.recording.redaction import Redactor, hashing
from kernel.recording.wire import answer_of, body_of, path_of

__all__ = [
    "Difference",
    "Placed",
    "RecordOptions",
    "RecordedError",
    "RecordedRequest",
    "Recorder",
    "Recording",
    "Redactor",
    "Told",
    "Tolerance",
    "answer_of",
    "body_of",
    "code_of",
    "differences",
    "export_input_data",
    "hashing",
    "is_recording",
    "message_of",
    "outputs_of",
    "path_of",
    "read_recording",
    "streamed_of",
]

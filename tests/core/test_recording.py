"""Recordings: what is written while requests are served, what is lost, and that what is read back is believed of nobody."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import re
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, TestBackend, answer, write_repository

from kernel import Batch, Code, InferenceResponse, Kernel, RecordedRequest, Result, ServingError, Tensor, hookimpl
from kernel.recording import Recorder, RecordOptions, Redactor, Told, is_recording, read_recording
from kernel.recording import recorder as recorder_module
from kernel.recording.file import RecordingFile
from kernel.recording.form import FORM, VERSION, Head
from kernel.recording.notes import of_record, run_of
from kernel.rules import Left, WaitReason
from kernel.simulation import read_arrivals

ROOT = Path(__file__).parents[2]
TEXTS = """
backend: "test"
max_batch_size: 4
input [ { name: "T" data_type: TYPE_STRING dims: [ -1 ] }, { name: "H" data_type: TYPE_BF16 dims: [ -1 ] } ]
output [ { name: "T" data_type: TYPE_STRING dims: [ -1 ] }, { name: "H" data_type: TYPE_BF16 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ] }
"""
X = {"X": np.array([1, 2], np.float32)}


def record(
    folder: Path,
    use: Callable[[Kernel], Any],
    models: Mapping[str, str] | None = None,
    behaviours: Mapping[str, Behaviour] | None = None,
    redact: Redactor | None = None,
    **options: Any,
) -> Path:
    """Record what `use(kernel)` does; return the file."""
    path = folder / "a.zip"

    async def main() -> None:
        write_repository(folder / "models", models or {"m": BASE})
        async with Kernel(folder / "models", plugins=[TestBackend(behaviours or {})]) as kernel:
            recorder = Recorder(kernel, kernel.supervision.history, RecordOptions(str(path), **options), redact, "0")
            recorder.start()
            await use(kernel)
            await recorder.stop()
            assert kernel.supervision.history.listeners == () and kernel.tracer.recording is None

    asyncio.run(main())
    return path


def told(path: Path) -> list[Told]:
    with read_recording(path) as recording:
        return list(recording.requests())


async def many(kernel: Kernel, count: int = 300, model: str = "m") -> None:
    for number in range(count):
        await kernel.infer(model, X, id=str(number))


def fails(batch: Batch) -> Result:
    raise ValueError("no such luck")


# -- what is recorded ------------------------------------------------------------------------------------------------------


def test_records_of_the_history_are_written(tmp_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        await many(kernel)
        with pytest.raises(ServingError):
            await kernel.infer("bad", X, id="b")
        await kernel.infer("e", X, id="e")

    models = {"m": BASE, "bad": BASE, "e": ENSEMBLE}
    path = record(tmp_path, use, models, {"bad": fails})
    found = told(path)
    ours = [one for one in found if one.model == "m" and one.caller is None]
    assert [one.id for one in ours] == [str(number) for number in range(300)]
    assert all(one.instance.startswith("m_") and one.waited >= 0 and one.executed >= 0 and not one.inputs for one in ours)
    assert all(one.seconds >= one.waited + one.executed - 1e-8 for one in ours)
    (bad,) = [one for one in found if one.model == "bad"]
    assert bad.error is not None and bad.error.code == "INTERNAL" and "no such luck" in bad.error.message
    (step,) = [one for one in found if one.caller is not None]
    (ensemble,) = [one for one in found if one.model == "e"]
    assert step.model == "m" and step.caller is not None and abs(step.caller[1] - ensemble.arrived) < 1e-5
    with read_recording(path) as recording:
        assert recording.warnings() == [] and recording.end is not None and recording.end.requests == len(found) == 303
        offsets, rows = recording.arrivals("m")
        assert len(offsets) == 300 and offsets[0] == 0 and (np.diff(offsets) >= 0).all() and set(rows) == {1}
        with pytest.raises(ServingError, match="no request of model 'x', but of 'bad', 'e', 'm'"):
            recording.arrivals("x")


def test_tensors_are_written_as_they_were(tmp_path: Path) -> None:
    def spoil(batch: Batch) -> Result:
        found: Result = [
            InferenceResponse([Tensor(name, one.datatype, one.array.copy()) for name, one in given.items() if name in wanted])
            for given, wanted in ((request.inputs, request.wanted) for request in batch.requests)
        ]
        for request in batch.requests:
            request.inputs["H"].array[:] = 0  # a model may do as it likes with what it was given
        return found

    texts = np.array([[b"a\xff", "ö".encode(), b""]], dtype=object)
    halves = np.array([[1, 2**15]], np.uint16)

    async def use(kernel: Kernel) -> None:
        inputs = {"T": Tensor("T", "BYTES", texts), "H": Tensor("H", "BF16", halves)}
        await kernel.infer("t", inputs, id="1", parameters={"a": 1}, outputs=["H"])
        await kernel.infer("m", {"X": np.zeros(0, np.float32)}, correlation_id=7, flags=1)
        with pytest.raises(ServingError):
            await kernel.infer("bad", X)

    behaviours = {"t": spoil, "bad": fails}
    first, second, third = told(record(tmp_path, use, {"m": BASE, "t": TEXTS, "bad": BASE}, behaviours, tensors=True))
    assert (first.outputs, first.parameters, first.batched, first.rows) == (["H"], {"a": 1}, True, 1)
    assert [(one.name, one.datatype, one.array.tolist()) for one in first.inputs] == [
        ("T", "BYTES", texts.tolist()), ("H", "BF16", halves.tolist())
    ]  # fmt: skip
    ((output,),) = first.answers
    assert (output.name, output.array.tolist()) == ("H", halves.tolist())
    assert second.inputs[0].shape == (0,) and (second.correlation_id, second.flags, second.batched) == (7, 1, False)
    assert third.error is not None and third.answers == [] and third.inputs[0].array.tolist() == [1, 2]


def test_each_response_is_an_answer(tmp_path: Path) -> None:
    decoupled = BASE + "model_transaction_policy { decoupled: true }"

    async def use(kernel: Kernel) -> None:
        async for _ in kernel.stream("m", X):
            pass

    def twice(batch: Batch) -> Result:
        for request in batch.requests:
            for number in range(2):
                request.model.kernel.send(request, answer(request, Y=[number]), number == 1)
        return None

    (one,) = told(record(tmp_path, use, {"m": decoupled}, {"m": twice}, tensors=True))
    assert [[tensor.array.tolist() for tensor in each] for each in one.answers] == [[[0.0]], [[1.0]]]


def test_an_error_between_responses_is_the_outcome(tmp_path: Path) -> None:
    """Whoever asks again is told of it, and reads no further: written as a success, it never was the same."""
    decoupled = BASE + "model_transaction_policy { decoupled: true }"

    async def use(kernel: Kernel) -> None:
        with pytest.raises(ServingError, match="halfway"):
            async for _ in kernel.stream("m", X):
                pass

    def halfway(batch: Batch) -> Result:
        for request in batch.requests:
            send = request.model.kernel.send
            send(request, answer(request, Y=[0]), False)
            send(request, InferenceResponse([], ServingError(Code.INTERNAL, "halfway")), False)
            send(request, answer(request, Y=[1]), True)
        return None

    (one,) = told(record(tmp_path, use, {"m": decoupled}, {"m": halfway}, tensors=True))
    assert one.error is not None and (one.error.code, one.error.message) == ("INTERNAL", "halfway")


@pytest.mark.parametrize("tensors", [False, True])
def test_texts_that_utf8_can_not_carry_are_escaped(
    tensors: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An id that an app gives, words of a model's error: they ended the recording, and what had come before was lost with it."""
    caplog.set_level(logging.CRITICAL, "kernel")  # a report of this test must not have the words, which pytest-xdist can't send

    def unlucky(batch: Batch) -> Result:
        raise ValueError("no \udcff")

    async def use(kernel: Kernel) -> None:
        await many(kernel, 3)
        await kernel.infer("m", X, id="a\udcff", parameters={"p\udcff": "\udcff"})
        with pytest.raises(ServingError):
            await kernel.infer("bad", X, id="b")

    path = record(tmp_path, use, {"m": BASE, "bad": BASE}, {"bad": unlucky}, tensors=tensors)
    with read_recording(path) as recording:
        assert recording.end is not None and recording.end.requests == 5 and recording.end.lost == 0
        found = {one.id: one for one in recording.requests()}
    assert list(found) == ["0", "1", "2", r"a\udcff", "b"]
    assert found[r"a\udcff"].parameters == ({r"p\udcff": r"\udcff"} if tensors else {})
    bad = found["b"].error
    assert bad is not None and bad.message.endswith(r"no \udcff")


def test_a_share_is_recorded(tmp_path: Path) -> None:
    path = record(tmp_path, lambda kernel: many(kernel, 2000), rate=0.25)
    assert 350 < len(told(path)) < 650  # six standard deviations


def test_nothing_is_recorded_before_and_after(tmp_path: Path) -> None:
    kernel = Kernel(write_repository(tmp_path, {"m": BASE}))
    assert kernel.supervision.history.listeners == () and kernel.tracer.recording is None


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("mine")
    record(tmp_path, many)
    assert (tmp_path / "a.zip").read_text() == "mine" and len(told(tmp_path / "a.zip.2")) == 300


def test_a_file_that_cant_be_made_stops_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with Kernel(write_repository(tmp_path, {"m": BASE}), plugins=[TestBackend({})]) as kernel:
            recorder = Recorder(kernel, kernel.supervision.history, RecordOptions(str(tmp_path / "no" / "a.zip")))
            with pytest.raises(ServingError, match=r"--record: '.*a.zip' can't be written: No such file or directory"):
                recorder.start()

    asyncio.run(main())


def test_why_a_batch_went_is_told_in_words() -> None:
    whys = [None, Left.FULL, WaitReason("now", "for resources"), {"request": WaitReason("a", "b")}]
    records: list[Any] = [(1, 1.0, 1.5, 1.5, 2.0, 2.0, 2.5, "", "m_0", why, None) for why in whys]
    words = ["", "it was full", "for resources", ""]
    assert [of_record("m", 1, one, 100.0).left for one in records] == words == run_of("m", 1, records, 100.0)[0].left
    assert run_of("m", 1, [records[1]] * 3, 100.0)[0].left == "it was full", "once for all"
    one = of_record("m", 1, records[0], 100.0)
    assert (one.arrived, one.waited, one.executed, one.seconds) == (101.0, 0.5, 0.5, 1.5)


def test_requests_that_came_together_are_one_line(tmp_path: Path) -> None:
    records: list[Any] = [
        (rows, 1.0 + rows, 2.0 + rows, 2.0, 2.0, 4.0 + rows, 5.0 + rows, id, "m_0", Left.FULL, caller)
        for rows, id, caller in ((1, "a", None), (2, "b", ("n_0", 7.0)))
    ]
    path = tmp_path / "a.zip"
    with open(path, "w+b") as file:
        recording = RecordingFile(file, Head(FORM, VERSION), 2**20)
        for _ in range(2):
            recording.add_run(*run_of("m", 3, records, 100.0))
        recording.add(of_record("m", 3, records[0], 200.0), 0)
        recording.close(0, "stopped")
    first, _, other, _, last = found = told(path)
    assert len(zipfile.ZipFile(path).read("000001/runs.jsonl").splitlines()) == 2
    assert found[:2] == [first] * 2 and found[2:4] == [other] * 2 and last == of_record("m", 3, records[0], 200.0)
    assert [first, other] == [of_record("m", 3, one, 100.0) for one in records]
    with read_recording(path) as reading:
        assert reading.end is not None and reading.end.requests == 5
        assert reading.arrivals("m")[0].tolist() == [0.0, 0.0, 100.0], "calls are left out"


# -- what is not ---------------------------------------------------------------------------------------------------------


def test_the_file_has_its_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    big = {"X": np.zeros(4096, np.float32)}

    async def use(kernel: Kernel) -> None:
        for _ in range(40):
            await kernel.infer("m", big)

    path = record(tmp_path, use, tensors=True, size=512 * 1024)
    assert path.stat().st_size <= 512 * 1024 and "has its size" in caplog.text
    with read_recording(path) as recording:
        assert recording.end is not None and recording.end.why == "full"
        assert 10 <= recording.end.requests == len(list(recording.requests())) < 16
        assert "not in" in recording.warnings()[0]


def test_what_the_disk_does_not_take_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_BYTES", 50_000)

    goes_on = threading.Event()

    def slow(request: Told) -> Told:
        goes_on.wait()
        return request

    async def use(kernel: Kernel) -> None:
        for _ in range(30):
            await kernel.infer("m", {"X": np.zeros(1024, np.float32)})
        goes_on.set()

    path = record(tmp_path, use, redact=slow, tensors=True)
    with read_recording(path) as recording:
        found = list(recording.requests())
        assert recording.end is not None and len(found) == 6 and recording.end.lost == 30 - len(found)


class Small(io.FileIO):
    """A file on a disk that has room for so many bytes."""

    room = 2000

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data) or 0


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def created(path: str) -> tuple[BinaryIO, str]:
        return io.BufferedRandom(Small(path, "x+b")), path  # type: ignore[return-value]

    monkeypatch.setattr(recorder_module, "created", created)
    monkeypatch.setattr(recorder_module, "HELD_SECONDS", 0.0)
    monkeypatch.setattr(recorder_module, "TOGETHER", 2)

    async def use(kernel: Kernel) -> None:
        for number in range(200):
            await kernel.infer("m", X, id=str(number))
            await asyncio.sleep(0)

    path = record(tmp_path, use, tensors=True)
    assert "can't be written: No space left on device" in caplog.text
    with read_recording(path) as recording:
        found = list(recording.requests())
        assert recording.end is None and "has no end" in recording.warnings()[0]
        assert [one.id for one in found] == [str(number) for number in range(len(found))] and found


# -- what must not be told -------------------------------------------------------------------------------------------------


def test_hash_tells_nothing_but_that_it_is_the_same(tmp_path: Path) -> None:
    (redactor,) = [Kernel(tmp_path).plugins.redactor("hash", {})]
    texts = np.array([[b"secret", b"secret", b"else"]], dtype=object)

    async def use(kernel: Kernel) -> None:
        inputs = {"T": Tensor("T", "BYTES", texts), "H": Tensor("H", "BF16", np.zeros((1, 1), np.uint16))}
        await kernel.infer("t", inputs, id="secret", parameters={"a": "secret"}, correlation_id="secret", flags=3)

    def same(batch: Batch) -> Result:
        return [InferenceResponse(list(request.inputs.values())) for request in batch.requests]

    path = record(tmp_path, use, {"t": TEXTS}, {"t": same}, redactor, tensors=True)
    assert b"secret" not in b"".join(zipfile.ZipFile(path).read(name) for name in zipfile.ZipFile(path).namelist())
    (one,) = told(path)
    first, second, third = one.inputs[0].array[0]
    assert first == second != third and first.decode() == one.id == one.parameters["a"] == one.correlation_id


def test_what_a_redactor_fails_at_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def redact(request: Told) -> Told | None:
        if request.id == "1":
            raise KeyError("1")
        return None if request.id == "2" else request

    path = record(tmp_path, lambda kernel: many(kernel, 4), redact=redact)
    assert [one.id for one in told(path)] == ["0", "3"]
    with read_recording(path) as recording:
        assert recording.end is not None and recording.end.lost == 1
    assert "fails, what it fails at is not recorded: KeyError" in caplog.text


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("spoilt", [{"parameters": {"a": object()}}, {"id": 7}, {"rows": "many"}])
def test_what_a_redactor_makes_unreadable_is_not_written(
    tensors: bool, spoilt: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An object ended the recording, and an id that was a number kept all of the file from being read again."""

    def redact(request: Told) -> Told:
        for name, value in spoilt.items() if request.id == "1" else ():
            setattr(request, name, value)
        return request

    path = record(tmp_path, lambda kernel: many(kernel, 4), redact=redact, tensors=tensors)
    assert [one.id for one in told(path)] == ["0", "2", "3"]
    with read_recording(path) as recording:
        assert recording.end is not None and (recording.end.requests, recording.end.lost) == (3, 1)
    assert "fails, what it fails at is not recorded" in caplog.text


def test_redactors_are_found(tmp_path: Path) -> None:
    class Mine:
        @hookimpl
        def make_redactor(self, name: str, settings: Mapping[str, str]) -> Any:
            return {"mine": lambda request: request, "wrong": 7}.get(name)

    plugins = Kernel(tmp_path, plugins=[Mine()]).plugins
    assert callable(plugins.redactor("mine", {}))
    with pytest.raises(ServingError, match=r"make_redactor for 'wrong' returned .*wanted what can be called"):
        plugins.redactor("wrong", {})
    with pytest.raises(ServingError, match="unable to find a redactor 'other'"):
        plugins.redactor("other", {})
    with pytest.raises(ServingError, match="has no settings; a came"):
        plugins.redactor("hash", {"a": "1"})


def test_redactor_of_the_documents(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/record.md").read_text(), re.DOTALL)
    module = ModuleType("blank")
    exec(compile(code, "docs/record.md", "exec"), module.__dict__)
    redact = Kernel(tmp_path, plugins=[module]).plugins.redactor("blank", {"input": "IMAGE"})

    def request(id: str) -> Told:
        image = Tensor("IMAGE", "FP32", np.ones((2, 2), np.float32))
        return RecordedRequest("m", 1, 0.0, 0.0, 0.0, 0.0, id, inputs=[image, Tensor("X", "FP32", np.ones(1, np.float32))])

    after = redact(request("1"))
    assert after is not None and [one.array.tolist() for one in after.inputs] == [[[0, 0], [0, 0]], [1]]
    assert redact(request("private-1")) is None


# -- what is read ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = io.BytesIO()
    writing = RecordingFile(file, Head(FORM, 1, tensors=True), 2**20)
    content = b""
    for number in range(3):
        tensors = [Tensor("X", "FP32", np.arange(3, dtype=np.float32)), Tensor("T", "BYTES", np.array([b"ab"], dtype=object))]
        writing.add(RecordedRequest("m", 1, number, 0.0, 0.0, 0.0, str(number), inputs=tensors, answers=[tensors]), 10)
        writing.add_run(*run_of("r", 1, [(1, number + 0.5, 3.5, 3.5, 4.0, 4.0, 4.0, f"r{number}", "r_0", None, None)], 0.0))
        writing.flush()
    end, file.close = file.close, lambda: None  # type: ignore[method-assign]
    writing.close(0, "stopped")
    content = file.getvalue()
    end()
    return content


def read(path: Path) -> list[str]:
    return [one.id for one in told(path)]


def test_a_file_that_was_cut_anywhere_is_read_as_far_as_it_goes(whole: bytes, tmp_path: Path) -> None:
    path, before = tmp_path / "a.zip", 0
    for length in (*range(0, len(whole), 5), len(whole)):
        path.write_bytes(whole[:length])
        try:
            found = read(path)
        except ServingError as error:
            assert "is no recording" in error.message and not before
            continue
        assert found == ["0", "r0", "1", "r1", "2", "r2"][: len(found)] and len(found) >= before
        before = len(found)
    assert before == 6 and is_recording(path) and not is_recording(tmp_path / "none")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_bytes_do_more_than_be_refused(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "mutated.zip"
    path.write_bytes(content)
    try:
        read(path)
    except ServingError as error:
        assert str(path) in error.message


def written(path: Path, members: Mapping[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    """Write a recording of these members."""
    with zipfile.ZipFile(path, "w", how) as file:
        file.writestr("recording.json", json.dumps({"form": FORM, "version": 1}))
        for name, content in members.items():
            file.writestr(name, content)
    return path


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def line(**tensor: Any) -> bytes:
    there = {"name": "X", "datatype": "FP32", "shape": [2], "at": 0, "size": 2, **tensor}
    request = {"model": "m", "version": 1, "arrived": 1.0, "waited": 0.0, "executed": 0.0, "seconds": 0.0, "inputs": [there]}
    return json.dumps(request).encode()


def run(**fields: Any) -> bytes:
    return json.dumps({"count": 2, "model": "m", "version": 1, **fields}).encode()


TIMES = npy(np.zeros(8))
FP32 = npy(np.zeros(2, np.float32))
TEXT = npy(np.frombuffer(b"\x02\0\0\0ab", np.uint8))
SHARED = line().replace(b'"inputs": [{', b'"inputs": [{"name": "W", "datatype": "FP32", "shape": [2], "at": 0, "size": 2}, {')
WRONG = {
    "not json": ({"000001/requests.jsonl": b"{"}, "000001/requests.jsonl, line 1: Input data was truncated"),
    "no fields": ({"000001/requests.jsonl": b"{}"}, "line 1: Object missing required field `model`"),
    "deep": ({"000001/requests.jsonl": b"[" * 100_000}, "line 1"),
    "no array": ({"000001/requests.jsonl": line()}, "has no 000001/FP32.npy, which its lines tell of"),
    "dtype": ({"000001/FP32.npy": npy(np.zeros(2)), "000001/requests.jsonl": line()}, "is of dtype float64.*wanted is float32"),
    "pickle": ({"000001/FP32.npy": npy(np.array([{}, 1], dtype=object)), "000001/requests.jsonl": line()}, "dtype object"),
    "matrix": ({"000001/FP32.npy": npy(np.zeros((1, 2), np.float32)), "000001/requests.jsonl": line()}, "one dimension"),
    "short": ({"000001/FP32.npy": FP32[:-1], "000001/requests.jsonl": line()}, "says that it has 2 elements, and has 7 bytes"),
    "no npy": ({"000001/FP32.npy": b"hello", "000001/requests.jsonl": line()}, "is no .npy"),
    "outside": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(at=1)}, "lies at 1 to 3, FP32.npy has 2 elements"),
    "before": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(at=-1)}, "lies at -1"),
    "shape": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(shape=[3])}, r"has the shape \[3\], and 2 elements"),
    "huge": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(shape=[2**62] * 64)}, "elements"),
    "none, and huge": (
        {"000001/FP32.npy": FP32, "000001/requests.jsonl": line(shape=[2**62, 4, 0], size=0)}, "which no tensor has"
    ),
    "one place for many": (
        {"000001/FP32.npy": FP32, "000001/requests.jsonl": SHARED}, "has tensors with more elements than FP32.npy, up to 'X'"
    ),
    "negative": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(shape=[-1, -2])}, "which no tensor has"),
    "rank": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(shape=[1] * 65)}, "which no tensor has"),
    "datatype": ({"000001/FP32.npy": FP32, "000001/requests.jsonl": line(datatype="../../x")}, "is of datatype '../../x'"),
    "run without times": ({"000001/runs.jsonl": run()}, "has no 000001/times.npy, which its runs tell of"),
    "run of more": ({"000001/times.npy": TIMES, "000001/runs.jsonl": run(count=3)}, "has 3 requests, times.npy has times for 2"),
    "run of none": ({"000001/times.npy": TIMES, "000001/runs.jsonl": run(count=0)}, "has 0 requests"),
    "run twice": ({"000001/times.npy": TIMES, "000001/runs.jsonl": run() + b"\n" + run()}, "line 2 has 2 requests, .* for 0"),
    "run of others": ({"000001/times.npy": TIMES, "000001/runs.jsonl": run(id=["a"])}, "says something of another number"),
    "run at no time": (
        {"000001/times.npy": npy(np.full(8, np.nan)), "000001/runs.jsonl": run()},
        "runs.jsonl, line 1: one of its times in times.npy is no number",
    ),
    "run without end": (
        {"000001/times.npy": npy(np.array([0, 0, 0, 0, np.inf, 1, 1, 1])), "000001/runs.jsonl": run()},
        "runs.jsonl, line 1: one of its times in times.npy is no number",
    ),
    "run of nothing": ({"000001/times.npy": TIMES, "000001/runs.jsonl": b"{}"}, "line 1: Object missing required field"),
    "strings": (
        {"000001/BYTES.npy": TEXT, "000001/requests.jsonl": line(datatype="BYTES", shape=[2], size=6)},
        "its data are of another number of strings",
    ),
    "half a string": (
        {"000001/BYTES.npy": TEXT, "000001/requests.jsonl": line(datatype="BYTES", shape=[1], size=5)},
        "its data are of another number of strings",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_told_with_its_place(name: str, tmp_path: Path) -> None:
    members, words = WRONG[name]
    with pytest.raises(ServingError, match=words):
        read(written(tmp_path / "a.zip", members))


def test_names_in_the_zip_are_no_paths(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    path = written(tmp_path / "a.zip", {"../../evil.npy": b"x", "/etc/passwd": b"x", "000001/../x.npy": b"x"})
    assert read(path) == [] and sorted(tmp_path.rglob("*")) == [*before, path]


def test_what_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.zip", {"000001/requests.jsonl": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    size = (50_000_000).to_bytes(4, "little")
    path.write_bytes(content.replace(size, (1000).to_bytes(4, "little")))
    with pytest.raises(ServingError, match="is damaged"):
        read(path)
    path.write_bytes(content.replace(size, (2**31).to_bytes(4, "little")))
    with pytest.raises(ServingError, match="more than 268435456"):
        read(path)


def test_a_small_file_has_no_requests_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says of as many requests as there are times, and times that are the same take next to no room in a zip."""
    times, count = npy(np.zeros(40_000)), 10_000
    members = {f"{number:06d}/times.npy": times for number in (1, 2)} | {"000001/runs.jsonl": run(count=count)}
    path = written(tmp_path / "a.zip", members, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 4096 and len(read(path)) == count
    monkeypatch.setattr("kernel.recording.reading.MOST_OF_ALL_LINES", len(times) + 4096)
    with pytest.raises(ServingError, match=r"its lines and times have more than 32.* bytes unpacked, which are not read"):
        read(path)
    monkeypatch.setattr("kernel.recording.reading.MOST_OF_LINES", len(times) - 1)
    monkeypatch.setattr("kernel.recording.reading.MOST_OF_ALL_LINES", 10**9)
    with pytest.raises(ServingError, match=r"000001/times.npy has .* bytes unpacked, more than"):
        read(path)


def test_another_form_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("recording.json", json.dumps({"form": FORM, "version": 3}))
    with pytest.raises(ServingError, match="of version 3, wanted is 'kernel-recording' of version 1 or 2"):
        read(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
        file.writestr("x", b"")
    with pytest.raises(ServingError, match=r"a zip without recording.json"):
        read(tmp_path / "b.zip")
    with pytest.raises(ServingError, match="can't be read: No such file"):
        read(tmp_path / "c.zip")


def test_a_recording_says_when_requests_came(tmp_path: Path) -> None:
    with open(tmp_path / "a.zip", "w+b") as file:
        recording = RecordingFile(file, Head(FORM, VERSION), 2**20)
        lines = (("m", 5.0, 2), ("x", 3.0, 1), ("m", 4.0, 1))
        for model, came, rows in lines:
            recording.add(RecordedRequest(model, 1, came, 0.0, 0.0, 0.0, rows=rows), 0)
        recording.close(0, "stopped")
    arrivals = read_arrivals(str(tmp_path / "a.zip"), model="m")
    assert arrivals.offsets.tolist() == [0.0, 1.0] and arrivals.rows is not None and arrivals.rows.tolist() == [1, 2]

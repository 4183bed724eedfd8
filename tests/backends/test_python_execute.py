"""The contract of `execute`: whatever a model returns, raises or forgets, each request gets one answer.

(Contract: python_backend, 2.4, 2.5.)
"""

from __future__ import annotations

import asyncio
import gc
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import Kernel, ServingError
from kernel_python.loading.foresight import may_wait

PLACEMENTS = ["thread", "loop"]
FAILED = "INTERNAL: Failed to process the request(s) for model 'a_0_0', message: "


def model(body: str, head: str = "def") -> str:
    lines = "\n            ".join(body.strip().splitlines())
    return f"""
    class TritonPythonModel:
        {head} execute(self, requests):
            {lines}
    """


def answer(value: str = "x") -> str:
    return f"pb_utils.InferenceResponse([pb_utils.Tensor('Y', {value})])"


X = "x = pb_utils.get_input_tensor_by_name(requests[0], 'X').as_numpy()\n"


@pytest.fixture(params=["thread", "loop"])
def placement(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=["def", "async def"])
def define(request: Any) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "return ['x']",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
        ),
        (
            "return None",
            "Expected a list in the execute return, found type '<class 'NoneType'>', and no response sender has sent a "
            "response for the request at index 0.",
        ),
        (
            "return [None]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'NoneType'>' "
            "at index 0, and no response sender has sent a response for that request.",
        ),
        (
            "requests[0].set_release_flags(2)\nreturn [None]",
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
            "such a flag.",
        ),
        (
            "requests[0].set_release_flags(2)\nreturn [pb_utils.InferenceResponse()]",
            "Expected a None object in the execute function return list for reschduled request, "
            "found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
        ),
        (
            "requests[0].get_response_sender()\nreturn None",
            "no response was returned for the request, and its response sender was dropped without having sent one",
        ),
    ],
)
def test_a_wrong_return_is_told_to_the_caller(
    repo: Any, helpers: Any, body: str, text: str, placement: str, define: str
) -> None:
    repo.add("a", model(body, define), parameters={"placement": placement})

    async def main(kernel: Kernel) -> list[Any]:
        call = helpers.Call(kernel, "a", [1])
        return [await call.result(), await helpers.ask(kernel, "a")]

    assert repo.run(main) == [[FAILED + text], FAILED + text]


def test_an_exception_is_told_with_its_place(repo: Any, helpers: Any, placement: str, define: str) -> None:
    path = repo.add(
        "a",
        model("self.f()", define) + "    def f(self):\n            raise ValueError('no')\n",
        parameters={"placement": placement},
    )
    expected = f"{FAILED}ValueError: no\n\nAt:\n  {path}(9): f\n  {path}(7): execute\n"
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == expected


@pytest.mark.parametrize("error", ["SystemExit(3)", "asyncio.CancelledError()", "KeyError('k')", "Broken()"])
def test_any_exception_is_an_answer(repo: Any, helpers: Any, error: str, define: str) -> None:
    code = "import asyncio\nclass Broken(Exception):\n    def __str__(self): raise OSError\n"
    repo.add("a", code + model(f"raise {error}", define).replace("\n    ", "\n"))

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.ask(kernel, "a") for _ in range(2)]

    for text in repo.run(main):
        assert text.startswith(FAILED + error.partition("(")[0].removeprefix("asyncio."))


BATCHED = "dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [ 2 ] }"
ROWS = "rows = [pb_utils.get_input_tensor_by_name(r, 'X').as_numpy() for r in requests]\n"


async def two(kernel: Kernel, helpers: Any, *, cancel: bool = False) -> list[Any]:
    """Send 77 and 1 so that they meet in one batch."""
    first, second = helpers.Call(kernel, "a", [[77]]), helpers.Call(kernel, "a", [[1]])
    return [await first.result(), await second.result()]


def test_none_in_the_list_fails_that_request_only(repo: Any, helpers: Any) -> None:
    """BC04."""
    body = ROWS + f"return [None if x[0, 0] == 77 else {answer()} for x in rows]"
    repo.add("a", model(body), max_batch_size=8, extra=BATCHED)
    failed, fine = repo.run(lambda kernel: two(kernel, helpers))
    assert "found type '<class 'NoneType'>' at index 0" in failed[0]
    assert fine == [[[[1.0]]]]


def test_another_object_in_the_list_fails_the_batch(repo: Any, helpers: Any) -> None:
    body = ROWS + f"return [7 if x[0, 0] == 77 else {answer()} for x in rows]"
    repo.add("a", model(body), max_batch_size=8, extra=BATCHED)
    for outcome in repo.run(lambda kernel: two(kernel, helpers)):
        assert outcome == [
            FAILED
            + "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
        ]


@pytest.mark.parametrize("filler", ["None", "7", "'anything'"])
def test_a_cancelled_request_may_have_anything_in_its_place(repo: Any, helpers: Any, filler: str) -> None:
    body = (
        ROWS
        + f"""
gone = [r.is_cancelled() for r in requests]
if not any(gone):
    started.set()
    [await asyncio.sleep(0) for _ in iter(lambda: any(r.is_cancelled() for r in requests), True)]
return [{filler} if r.is_cancelled() else {answer()} for x, r in zip(rows, requests)]
"""
    )
    code = "import asyncio\nimport sys\nstarted = sys.started_for_test\n" + model(body, "async def").replace(
        "\n    ", "\n"
    )
    repo.add("a", code, max_batch_size=8, extra=BATCHED, parameters={"placement": "loop"})
    import sys

    async def main(kernel: Kernel) -> list[Any]:
        first, second = helpers.Call(kernel, "a", [[77]]), helpers.Call(kernel, "a", [[1]])
        await sys.started_for_test.wait()  # type: ignore[attr-defined]
        kernel.cancel(first.request)
        return [await first.result(), await second.result()]

    sys.started_for_test = asyncio.Event()  # type: ignore[attr-defined]
    try:
        cancelled, fine = repo.run(main)
    finally:
        del sys.started_for_test  # type: ignore[attr-defined]
    assert cancelled[0].startswith("CANCELLED")
    assert fine == [[[[1.0]]]]


def test_an_error_response_keeps_its_code(repo: Any, helpers: Any) -> None:
    body = "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND))]"
    repo.add("a", model(body))
    assert repo.run(lambda kernel: helpers.ask(kernel, "a")) == "NOT_FOUND: no"


def test_outputs_pass_as_they_are_and_undeclared_ones_are_dropped(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros((1, 2))), pb_utils.Tensor('Z', np.ones(1))])]"
    repo.add("a", model(body))

    async def main(kernel: Kernel) -> list[Any]:
        out = []
        for _ in range(2):
            response = await kernel.infer("a", {"X": np.zeros(1, np.float32)})
            out.append([(one.name, one.datatype, one.shape) for one in response.outputs])
        return out

    assert repo.run(main) == [[("Y", "FP64", (1, 2))]] * 2
    (warning,) = [record for record in caplog.records if "is dropped" in record.getMessage()]
    assert "model 'a' returned a tensor 'Z' that is no output in its config (Y)" in warning.getMessage()


def test_only_requested_outputs_are_returned(repo: Any, caplog: pytest.LogCaptureFixture) -> None:
    io = (
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ '
        + ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}' for name in "YZ")
        + " ]"
    )
    body = X + "names = sorted(requests[0].requested_output_names())\n"
    body += "assert names == ['Z'], names\n"
    body += "return [pb_utils.InferenceResponse([pb_utils.Tensor(n, x) for n in 'YZ'])]"
    repo.add("a", model(body), io=io)

    async def main(kernel: Kernel) -> list[str]:
        response = await kernel.infer("a", {"X": np.zeros(1, np.float32)}, outputs=["Z"])
        return [one.name for one in response.outputs]

    assert repo.run(main) == ["Z"]
    assert not [record for record in caplog.records if "is dropped" in record.getMessage()]


def test_what_a_request_says(repo: Any, helpers: Any) -> None:
    body = """
r = requests[0]
facts = [r.request_id(), r.correlation_id(), r.flags(), r.parameters(), sorted(r.requested_output_names()),
         r.trace().get_context(), r.is_cancelled(), [t.name() for t in r.inputs()], r.inputs()[0] is r.inputs()[0],
         r.inputs()[0].as_numpy().flags.writeable, r.get_response_sender() is not None,
         pb_utils.get_input_tensor_by_name(r, 'nope'), pb_utils.get_model_dir()[-4:], pb_utils.is_model_ready('a'),
         pb_utils.is_model_ready('nope')]
return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([json.dumps(facts)], dtype=object))])]
"""
    repo.add(
        "a",
        model(body),
        io=helpers.IO.replace(
            'output [ { name: "Y" data_type: TYPE_FP32', 'output [ { name: "Y" data_type: TYPE_STRING'
        ),
    )

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a", id="i", parameters={"b": 1, "a": "x"}, correlation_id=3, flags=3)

    import json

    (text,) = repo.run(main)
    assert json.loads(text) == [
        "i", 3, 3, '{"b":1,"a":"x"}', ["Y"], None, False, ["X"], True, True, True, None, "/a/1", True, False,
    ]  # fmt: skip


# -- the response sender of a normal model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "send",
    [
        f"s.send({answer()})\ns.send(flags=1)",
        f"s.send({answer()}, flags=1)",
        f"s.send({answer()})",
        f"s.send({answer()}, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    ],
)
def test_a_normal_model_may_answer_by_its_sender(repo: Any, helpers: Any, send: str, placement: str) -> None:
    body = X + "s = requests[0].get_response_sender()\nassert s is requests[0].get_response_sender()\n" + send
    repo.add("a", model(body + "\nreturn None"), parameters={"placement": placement})

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.Call(kernel, "a", [1, 2]).result() for _ in range(2)]

    assert repo.run(main) == [[[[1.0, 2.0]]]] * 2


@pytest.mark.parametrize(
    ("send", "text"),
    [
        ("s.send(flags=3)", "Unable to send response. Unsupported flag provided."),
        ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
        (
            "s.send(flags=1)",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (
            f"s.send({answer()})\ns.send({answer()})",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (f"s.send({answer()}, 1)\ns.send(flags=1)", "Unable to send response. Response sender has been closed."),
        (
            "s.send('x')",
            "send(): incompatible function arguments. The following argument types are supported:\n"
            "    1. (self: c_python_backend_utils.InferenceResponseSender, response: "
            "c_python_backend_utils.InferenceResponse = None, flags: int = 0) -> None\n\nInvoked with: "
            "<c_python_backend_utils.InferenceResponseSender object at",
        ),
    ],
)
def test_what_a_sender_refuses(repo: Any, helpers: Any, send: str, text: str) -> None:
    lines = "\n    ".join(send.splitlines())
    body = (
        X
        + f"s = requests[0].get_response_sender()\ntry:\n    {lines}\nexcept Exception as e:\n    self.text = str(e)\n"
    )
    body += "if s._sent: return None\n"
    body += "return [pb_utils.InferenceResponse(error=pb_utils.TritonError(self.text))]"
    code = (
        model(body) + "    def finalize(self):\n            import sys\n            sys.refused_for_test = self.text\n"
    )
    repo.add("a", code, parameters={"placement": "thread"})
    import sys

    repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result())
    assert sys.refused_for_test.startswith(text)  # type: ignore[attr-defined]
    del sys.refused_for_test  # type: ignore[attr-defined]


def test_a_second_answer_is_refused(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = X + f"requests[0].get_response_sender().send({answer()}, 1)\nreturn [{answer('x + 1')}]"
    repo.add("a", model(body))
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == [[[1.0]]]
    assert "Non-decoupled model cannot send more than one response." in caplog.text


def test_a_sender_that_was_taken_and_not_used(repo: Any, helpers: Any) -> None:
    repo.add("a", model(X + f"self.s = requests[0].get_response_sender()\nreturn [{answer()}]"))

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.Call(kernel, "a", [1]).result() for _ in range(3)]

    assert repo.run(main) == [[[[1.0]]]] * 3


# -- decoupled ---------------------------------------------------------------------------------------------------------


def test_decoupled_responses_come_in_order(repo: Any, helpers: Any, placement: str, define: str) -> None:
    body = (
        X
        + f"""s = requests[0].get_response_sender()
for i in range(4):
    s.send({answer("x + i")})
s.send(flags=1)
"""
    )
    repo.add("a", model(body, define), decoupled=True, parameters={"placement": placement})
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == [[[1]], [[2]], [[3]], [[4]]]


def test_sending_after_the_final_flag_raises_in_the_model(repo: Any, helpers: Any) -> None:
    """BC07."""
    body = (
        X
        + f"""s = requests[0].get_response_sender()
for i in range(4):
    s.send({answer("x + i")})
s.send(flags=1)
for again in (lambda: s.send(flags=1), lambda: s.send({answer()})):
    try:
        again()
    except pb_utils.TritonModelException as e:
        pb_utils.Logger.log_error(str(e))
"""
    )
    repo.add("a", model(body), decoupled=True)

    async def main(kernel: Kernel) -> list[Any]:
        return [await helpers.Call(kernel, "a", [1]).result() for _ in range(2)]

    assert [len(responses) for responses in repo.run(main)] == [4, 4]


def test_a_decoupled_model_that_returns_a_list(repo: Any, helpers: Any, define: str) -> None:
    """BC06."""
    repo.add("a", model(X + f"return [{answer()}]", define), decoupled=True)
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == [
        FAILED + "Python model 'a_0_0' is using the decoupled mode and the execute function must return None."
    ]


def test_an_exception_is_the_last_response(repo: Any, helpers: Any, placement: str, define: str) -> None:
    body = X + f"requests[0].get_response_sender().send({answer()})\nraise ValueError('no')"
    repo.add("a", model(body, define), decoupled=True, parameters={"placement": placement})
    first, last = repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result())
    assert first == [[1.0]]
    assert last.startswith(FAILED + "ValueError: no\n\nAt:\n")


def test_an_exception_after_the_final_flag_is_only_logged(repo: Any, helpers: Any, define: str) -> None:
    body = X + f"requests[0].get_response_sender().send({answer()}, 1)\nraise ValueError('late')"
    repo.add("a", model(body, define), decoupled=True)
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == [[[1.0]]]


@pytest.mark.parametrize(
    "body",
    ["return None", "s = requests[0].get_response_sender()", X + f"requests[0].get_response_sender().send({answer()})"],
)
def test_a_lost_sender_is_told(repo: Any, helpers: Any, body: str, placement: str, define: str) -> None:
    repo.add("a", model(body, define), decoupled=True, parameters={"placement": placement})
    responses = repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result())
    assert responses[-1].startswith(
        FAILED + "the response sender of the request was dropped without having sent the final"
    )


def test_a_lost_sender_in_a_cycle_is_told_when_it_is_collected(repo: Any, helpers: Any) -> None:
    repo.add("a", model("c = [requests[0].get_response_sender()]\nc.append(c)"), decoupled=True)

    async def main(kernel: Kernel) -> list[Any]:
        call = helpers.Call(kernel, "a", [1])
        while call.request.batch is None or not call.request.batch.ended:  # noqa: ASYNC110 - the core has no event for it
            await asyncio.sleep(0.001)
        gc.collect()
        return list(await call.result())

    assert "dropped" in repo.run(main)[0]


def test_a_sender_lives_on_in_a_thread(repo: Any, helpers: Any) -> None:
    body = (
        X
        + f"""import threading
s = requests[0].get_response_sender()
go = threading.Event()
def work():
    go.wait(5)
    s.send({answer()})
    s.send({answer("x + 1")}, 1)
self.thread = threading.Thread(target=work)
self.thread.start()
go.set()
"""
    )
    repo.add("a", model(body) + "    def finalize(self):\n            self.thread.join()\n", decoupled=True)
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == [[[1]], [[2]]]


def test_error_responses_do_not_end_the_stream(repo: Any, helpers: Any) -> None:
    body = (
        X
        + f"""s = requests[0].get_response_sender()
s.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('mid', pb_utils.TritonError.UNAVAILABLE)))
s.send({answer()})
s.send(pb_utils.InferenceResponse(), flags=1)
"""
    )
    repo.add("a", model(body), decoupled=True)
    assert repo.run(lambda kernel: helpers.Call(kernel, "a", [1]).result()) == ["UNAVAILABLE: mid", [[1.0]], []]


def test_async_executions_overlap(repo: Any, helpers: Any) -> None:
    body = """import asyncio
self.n = getattr(self, 'n', 0) + 1
self.all = getattr(self, 'all', None) or asyncio.Event()
if self.n == 3:
    self.all.set()
await asyncio.wait_for(self.all.wait(), 5)
return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([self.n], np.float32))])]
"""
    repo.add("a", model(body, "async def"))

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(helpers.ask(kernel, "a") for _ in range(3)))

    assert repo.run(main) == [[3.0]] * 3


# -- what is wrong with what execute returns is in the log, once ----------------------------------------------------------

WRONG = {
    "{'Y': x}": "Expected a list in the execute return, found type '<class 'dict'>'.",
    "self": "Expected a list in the execute return, found type '<class '1.model.TritonPythonModel'>'.",
    "[{'Y': x}]": "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'dict'>'.",
    "None": "Expected a list in the execute return, found type '<class 'NoneType'>', and no response sender has sent a response "
    "for the request at index 0.",
    "[]": "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size "
    "is:1, and InferenceResponse(s) size is:0",
}


@pytest.mark.parametrize("returned", WRONG)
def test_what_execute_must_not_return_is_logged_once(
    repo: Any, helpers: Any, returned: str, caplog: pytest.LogCaptureFixture
) -> None:
    repo.add("a", model(f"{X}return {returned}"))

    async def main(kernel: Kernel) -> Any:
        return [await helpers.ask(kernel, "a") for _ in range(3)]

    for answer_ in repo.run(main):
        assert answer_.rstrip() == FAILED + WRONG[returned]
    assert [record.getMessage() for record in caplog.records if "model instance" in record.getMessage()] == [
        f"model instance 'a_0_0': {WRONG[returned]} (execute returns a list with one "
        "pb_utils.InferenceResponse([pb_utils.Tensor(name, array), ...]) for each request; this is logged once)"
    ]


def test_an_output_that_is_left_out_is_logged_once(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the answer, as from the reference; who has asked for others misses nothing."""
    two = helpers.IO.replace("output [", 'output [ { name: "Z" data_type: TYPE_FP32 dims: [ 1 ] }, '
                             '{ name: "W" data_type: TYPE_FP32 dims: [ 1 ] },')  # fmt: skip
    repo.add("a", helpers.ECHO, io=two)

    async def main(kernel: Kernel) -> Any:
        first = await helpers.ask(kernel, "a", outputs=["Y"])
        told = len(caplog.records)
        return [first, *[await helpers.ask(kernel, "a") for _ in range(3)]], [
            record.getMessage() for record in caplog.records[told:] if record.levelname == "WARNING"
        ]

    answers, lines = repo.run(main)
    assert answers == [[1.0]] * 4
    assert lines == [
        f"model 'a': output '{name}' is missing in an answer, which is passed on without it" for name in ("Z", "W")
    ]


# -- an execute that returns a coroutine ---------------------------------------------------------------------------------

#: How `execute` comes to be one that returns a coroutine though it is no `async def`.
DELEGATES = {
    "decorator": """
        def retrying(f):
            @functools.wraps(f)
            def call(*args):
                return f(*args)
            return call
        class TritonPythonModel:
            @retrying
            async def execute(self, requests):
                await asyncio.sleep(0)
                return answers(requests)
    """,
    "delegate": """
        class TritonPythonModel:
            def execute(self, requests):
                return self.work(requests)
            async def work(self, requests):
                return await asyncio.wait_for(asyncio.create_task(self.more(requests)), 20)
            async def more(self, requests):
                await asyncio.sleep(0)
                return answers(requests)
    """,
    "partial": """
        async def work(more, requests):
            await asyncio.sleep(0)
            return answers(requests)
        class TritonPythonModel:
            def initialize(self, args):
                self.execute = functools.partial(work, 1)
            def execute(self, requests): pass
    """,
    "callable": """
        class Work:
            async def __call__(self, requests):
                return answers(requests)
        class TritonPythonModel:
            def initialize(self, args):
                self.execute = Work()
            def execute(self, requests): pass
    """,
    "calls": """
        class TritonPythonModel:
            def execute(self, requests):
                return self.work(requests)
            async def work(self, requests):
                x = pb_utils.Tensor("X", np.array([2.0], np.float32))
                def call():
                    return pb_utils.InferenceRequest(model_name="echo", inputs=[x], requested_output_names=["Y"])
                async def part():
                    return call().exec()
                got = [call().exec(), await call().async_exec(), *await asyncio.gather(part(), part())]
                assert [r.output_tensors()[0].as_numpy().tolist() for r in got] == [[2.0]] * 4
                return answers(requests)
    """,
}
ANSWERS = """
import asyncio, functools
def answers(requests):
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
        for r in requests
    ]
"""


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_an_execute_that_yields_is_told_that_a_list_is_wanted(repo: Any, helpers: Any, placement: str) -> None:
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        yield None\n"
    repo.add("a", code, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await helpers.ask(kernel, "a", [1])

    assert repo.run(main) == (
        "INTERNAL: Failed to process the request(s) for model 'a_0_0', message: Expected a list in the execute return, found "
        "type '<class 'generator'>'."
    )


@pytest.mark.parametrize("how", DELEGATES)
@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_a_coroutine_that_execute_returns_is_awaited(repo: Any, helpers: Any, placement: str, how: str) -> None:
    repo.add("echo", helpers.ECHO)
    repo.add("a", ANSWERS + textwrap.dedent(DELEGATES[how]), parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(helpers.ask(kernel, "a", [i]) for i in range(3)))

    assert repo.run(main) == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_what_a_returned_coroutine_raises_is_the_executions_failure(repo: Any, helpers: Any, placement: str) -> None:
    code = """
    import sys
    class TritonPythonModel:
        def execute(self, requests):
            return self.work(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        async def work(self, x):
            if x == 1:
                raise ValueError("no")
            if x == 2:
                sys.exit(3)
            return {"Y": x}
    """
    repo.add("a", code, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return [await helpers.ask(kernel, "a", [i]) for i in (1, 2, 3, 1)]

    first, ended, wrong, last = repo.run(main)
    assert "message: ValueError: no\n\nAt:\n" in first
    assert ": work\n" in first
    assert last == first
    assert "message: SystemExit: 3" in ended
    assert "Expected a list in the execute return, found type '<class 'dict'>'." in wrong


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_a_returned_coroutine_of_a_decoupled_model(repo: Any, helpers: Any, placement: str) -> None:
    """It goes on while others are executed, as in the reference; what it leaves open when it fails is answered."""
    code = """
    import asyncio
    class TritonPythonModel:
        def initialize(self, args):
            self.there = []
        def execute(self, requests):
            return self.work(requests)
        async def work(self, requests):
            (request,) = requests
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            if x[0] == 7:
                raise ValueError("in the middle")
            if x[0] == 8:
                return [1]
            await asyncio.sleep(0)
            sender.send(flags=1)
    """
    repo.add("a", code, parameters={"placement": placement}, decoupled=True)

    async def main(kernel: Kernel) -> Any:
        calls = [helpers.Call(kernel, "a", [i]) for i in (1, 7, 8, 2)]
        return [await call.result() for call in calls]

    one, raised, returned, two = repo.run(main)
    assert (one[0], two[0]) == ([[1.0]], [[2.0]])
    assert raised[0] == [[7.0]]
    assert "message: ValueError: in the middle" in raised[1]
    assert "is using the decoupled mode and the execute function must return None." in returned[1]


def test_decoupled_coroutines_overlap(repo: Any, helpers: Any) -> None:
    code = """
    import asyncio
    class TritonPythonModel:
        def initialize(self, args):
            self.second = None
        def execute(self, requests):
            return self.work(requests[0])
        async def work(self, request):
            if self.second is None:
                self.second = asyncio.Event()
                await asyncio.wait_for(self.second.wait(), 20)
            self.second.set()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            request.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]), 1)
    """
    repo.add("a", code, decoupled=True)

    async def main(kernel: Kernel) -> Any:
        return [await call.result() for call in [helpers.Call(kernel, "a", [i]) for i in (1, 2)]]

    assert repo.run(main) == [[[[1.0]]], [[[2.0]]]]


def test_a_coroutine_that_nothing_announced_costs_one_request(repo: Any, helpers: Any, imported: dict[str, Any]) -> None:
    """On the loop nobody can wait for it in the middle of a plain execution."""
    code = ANSWERS + textwrap.dedent(model("return asyncio.sleep(0, answers(requests))"))
    repo.add("a", code, parameters={"placement": "loop"})

    async def main(kernel: Kernel) -> Any:
        return [await helpers.ask(kernel, "a", [i]) for i in (1, 2)]

    first, second = repo.run(main)
    assert first.partition("\n")[0] == FAILED + (
        "TritonModelException: execute of model 'a' has returned a coroutine, which can't be awaited in the middle of this "
        "execution: nothing in the model's files looked like it. The next ones are awaited; `async def execute` always is"
    )
    assert second == [2.0]


# -- models on the loop that can't wait are called without a greenlet ----------------------------------------------------

def test_foresight_reads_every_file_of_the_model(tmp_path: Path, imported: dict[str, Any]) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("def f(r): return r.async_exec()\n")
    assert not may_wait(tmp_path)
    (tmp_path / "helper.py").write_text("def g(r): return r.exec()\n")  # imported one day, inside execute
    assert may_wait(tmp_path)
    (tmp_path / "helper.py").write_text("for r in request.async_exec(decoupled=True): pass\n")
    assert may_wait(tmp_path)
    (tmp_path / "helper.py").write_text("async def g(requests): pass\n")  # `execute` may return what it gives
    assert may_wait(tmp_path)


def test_foresight_is_careful_where_a_library_knows_pb_utils(tmp_path: Path, imported: dict[str, Any]) -> None:
    assert not may_wait(tmp_path)
    library = imported["a_library"] = types.ModuleType("a_library")
    library.pb_utils = imported["triton_python_backend_utils"]  # type: ignore[attr-defined]
    assert may_wait(tmp_path)
    del imported["a_library"]
    assert not may_wait(tmp_path)
    import c_python_backend_utils  # knows it, and is ours

    imported["c_python_backend_utils"] = c_python_backend_utils
    assert not may_wait(tmp_path)


def test_a_wrong_guess_costs_one_request_and_says_why(repo: Any, helpers: Any, imported: dict[str, Any]) -> None:
    repo.add("busy", helpers.ECHO)  # on a thread: its answer has to be waited for
    repo.add(
        "a",
        model(
            X
            + "call = pb_utils.InferenceRequest(model_name='busy', inputs=[pb_utils.Tensor('X', x)], "
            + "requested_output_names=['Y'])\n"
            + "response = getattr(call, 'ex' + 'ec')()\n"
            + "y = pb_utils.get_output_tensor_by_name(response, 'Y').as_numpy()\n"
            + f"return [{answer('y')}]"
        ),
        parameters={"placement": "loop"},
    )

    async def main(kernel: Kernel) -> None:
        with pytest.raises(ServingError, match="would block the event loop"):
            await kernel.infer("a", {"X": np.ones(1, np.float32)})
        response = await kernel.infer("a", {"X": np.ones(1, np.float32)})
        assert response["Y"].tolist() == [1.0]

    repo.run(main)


def test_a_response_that_cannot_be_sent_leaves_the_sender_open(repo: Any) -> None:
    """The exception is the model's to see; the request still gets its final answer."""
    repo.add(
        "a",
        """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    bad = np.empty(1, object)
                    bad[0] = chr(0xD800)
                    try:
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", bad)]), flags=1)
                    except UnicodeEncodeError:
                        good = np.array([b"caught"], object)
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", good)]))
                        sender.send(flags=1)
        """,
        io='input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        'output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]',
        decoupled=True,
    )

    async def main(kernel: Kernel) -> None:
        async with asyncio.timeout(10):
            responses = [response async for response in kernel.stream("a", {"X": np.ones(1, np.float32)})]
        assert [response["Y"].tolist() for response in responses] == [[b"caught"]]

    repo.run(main)

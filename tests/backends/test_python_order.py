"""One order for everything that goes to the loop, whatever thread it is from: who has waited for a thread comes after it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from kernel import Kernel

#: Each step is taken by a thread that is joined, or by `execute` itself.
STREAM = """
import threading
class TritonPythonModel:
    {define} execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            def send(i):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([i], np.float32))]))
            for i in range(9):
                if i % 4 == 3:
                    send(i)
                    continue
                thread = threading.Thread(target=send, args=(i,))
                thread.start()
                thread.join()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
@pytest.mark.parametrize("define", ["def", "async def"])
def test_responses_of_threads_come_before_what_is_sent_after_them(
    repo: Any, helpers: Any, define: str, placement: str
) -> None:
    repo.add("m", STREAM.format(define=define), decoupled=True, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await asyncio.gather(*(helpers.Call(kernel, "m", [1]).result() for _ in range(3)))

    assert repo.run(main) == [[[[float(i)]] for i in range(9)]] * 3


FAILS = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        def send(i):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([i], np.float32))]))
        thread = threading.Thread(target=send, args=(0,))
        thread.start()
        thread.join()
        send(1)
        raise ValueError("no more")
"""


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_what_was_sent_comes_before_the_failure_that_ends_the_execution(repo: Any, helpers: Any, placement: str) -> None:
    repo.add("m", FAILS, decoupled=True, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        return await helpers.Call(kernel, "m", [1]).result()

    *sent, failure = repo.run(main)
    assert sent == [[[0.0]], [[1.0]]] and "no more" in failure


ONE_ANSWER = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([7], np.float32))])
            thread = threading.Thread(target=sender.send, args=(response,))
            thread.start()
            thread.join()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


def test_the_one_response_of_a_thread_is_the_answer(repo: Any, helpers: Any) -> None:
    repo.add("m", ONE_ANSWER, parameters={"placement": "loop"})
    assert repo.run(lambda kernel: helpers.Call(kernel, "m", [1]).result()) == [[[7.0]]]


#: A sequence of calls, of which a thread that is joined makes every other one.
CALLS = """
import threading
class TritonPythonModel:
    {define} execute(self, requests):
        def call(i):
            x = pb_utils.Tensor("X", np.array([i], np.float32))
            flags = (i == 0) * 1 + (i == 5) * 2
            made = pb_utils.InferenceRequest(
                model_name="seen", inputs=[x], requested_output_names=["Y"], correlation_id=5, flags=flags)
            answers.append(made.exec(decoupled=True))
        answers = []
        for i in range(5):
            if i % 2:
                call(i)
            else:
                thread = threading.Thread(target=call, args=(i,))
                thread.start()
                thread.join()
        x = pb_utils.Tensor("X", np.array([5], np.float32))
        last = pb_utils.InferenceRequest(
            model_name="seen", inputs=[x], requested_output_names=["Y"], correlation_id=5, flags=2)
        last = {last}
        said = [r.error().message() if r.has_error() else r.output_tensors()[0].as_numpy()[0]
                for a in [*answers, [last]] for r in a if r.has_error() or r.output_tensors()]
        text = [one for one in said if isinstance(one, str)]
        if text:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text[0]))]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(said, np.float32))])]
"""

SEEN = """
class TritonPythonModel:
    def initialize(self, args):
        self.seen = 0
    def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 10 + self.seen)]))
            self.seen += 1
        return out
"""


@pytest.mark.parametrize(("define", "last"), [("def", "last.exec()"), ("async def", "await last.async_exec()")])
def test_calls_of_a_sequence_come_in_the_order_in_which_they_were_made(
    repo: Any, helpers: Any, define: str, last: str
) -> None:
    parameters = {"placement": "loop"}
    repo.add("seen", SEEN, extra="sequence_batching { max_sequence_idle_microseconds: 60000000 }", parameters=parameters)
    repo.add("m", CALLS.format(define=define, last=last), parameters=parameters)
    answer = repo.run(lambda kernel: helpers.ask(kernel, "m"))
    assert answer == [float(i * 10 + i) for i in range(6)]


def test_what_is_told_the_loop_there_waits_for_what_threads_have_told_it_before(repo: Any, helpers: Any) -> None:
    import threading

    repo.add("m", helpers.ECHO)

    async def main(kernel: Kernel) -> Any:
        seen: list[int] = []
        kernel.call_in_order(seen.append, 0)
        assert seen == [0]
        thread = threading.Thread(target=kernel.call_soon, args=(seen.append, 1))
        thread.start()
        thread.join()
        kernel.call_in_order(seen.append, 2)
        kernel.call_soon(seen.append, 3)
        assert seen == [0, 1, 2]
        assert (await kernel.infer("m", {"X": np.ones(1, np.float32)}))["Y"].tolist() == [1.0]
        return seen

    assert repo.run(main) == [0, 1, 2, 3]

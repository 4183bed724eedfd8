"""The one way to RELEASED: also for a request that reaches no model."""

from __future__ import annotations

import asyncio

import pytest

from kernel import InferenceRequest, InferenceResponse, Kernel
from kernel.errors import Code, ServingError
from kernel.requests.request import RequestState
from kernel.scheduling.release import Release


def test_one_final_answer_signed_with_whose_it_is() -> None:
    answers: list[tuple[InferenceResponse | None, bool]] = []
    request = InferenceRequest("m", {}, lambda response, final: answers.append((response, final)), id="7")
    release = Release("m", "3")
    release.release(request, InferenceResponse([]))
    release.end(request, ServingError(Code.CANCELLED, "late"))
    ((response, final),) = answers
    assert response is not None and final and response.error is None
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    assert request.state is RequestState.RELEASED


def test_who_is_told_that_there_is_no_such_model_and_fails_does_not_fail_the_kernel(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[ServingError | None] = []

    def respond(response: InferenceResponse | None, final: bool) -> None:
        assert response is not None and final
        errors.append(response.error)
        raise ValueError("nobody expects that")

    async def main() -> InferenceRequest:
        async with Kernel() as kernel:
            request = InferenceRequest("nothing", {}, respond, id="7")
            kernel.submit(request)  # never raises
            kernel.submit(request)  # has had its answer
            return request

    request = asyncio.run(main())
    assert [error is not None and error.code for error in errors] == [Code.NOT_FOUND]
    assert request.state is RequestState.RELEASED
    assert "[request id: 7] the receiver of an answer of model 'nothing' failed" in caplog.text

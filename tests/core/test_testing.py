"""kernel.testing as a newcomer meets it: fixtures, plain and async tests, errors that help. Runs pytest within pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core.written import DECOUPLED, ECHO, NEVER, write

import kernel.testing  # noqa: F401 — numpy can't be imported anew by each of the inner runs

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[2] / "repository"
ARGUMENTS = "-p kernel_pytest -p no:cacheprovider".split()


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the sample repository, in which tests can be run without any other plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (pytester.path / "repository").symlink_to(REPOSITORY)
    return pytester


def outcome(tests: pytest.Pytester, code: str, *arguments: str, **wanted: int) -> pytest.RunResult:
    """Run a test module and return what came of it, which has to be `wanted`."""
    tests.makepyfile(code)
    result = tests.runpytest(*ARGUMENTS, *arguments)
    result.assert_outcomes(**wanted)
    return result


def test_the_first_test(tests: pytest.Pytester) -> None:
    code = """
        def test_add_sub(load_model):
            model = load_model("repository/add_sub")
            response = model.infer(A=[1, 2], B=[3, 4])
            assert response["SUM"].tolist() == [4, 6]
    """
    outcome(tests, code, passed=1)


def test_what_there_is(tests: pytest.Pytester) -> None:
    code = """
        import numpy as np
        import pytest
        from kernel import Kernel, ServingError
        from kernel.testing import assert_close

        def test_infer(load_model):
            model = load_model("repository/add_sub")
            response = model.infer({"A": [1], "B": np.ones(1, np.float32)}, id="x", outputs=["SUM"])
            assert_close(response, {"SUM": [2]})
            assert response.id == "x" and "DIFFERENCE" not in response
            assert model.statistics.inference_count == 1
            assert isinstance(model.kernel, Kernel) and model.config.name == "add_sub" and model.version == 1
            assert repr(model) == "<LoadedModel add_sub version 1>"

        def test_stream(load_model):
            model = load_model("repository/repeat")
            assert [response["OUT"].tolist() for response in model.stream(IN=[5, 6])] == [[5], [6]]
            assert [response["OUT"].tolist() for response in model.submit(IN=[5, 6]).all()] == [[5], [6]]
            with pytest.raises(ServingError, match=r"gave 2 responses where exactly one was wanted; use stream\\(\\)"):
                model.infer(IN=[5, 6])
            for response in model.stream(IN=range(1000)):
                break  # the rest is cancelled

        def test_repository(load_repository):
            models = load_repository("repository")
            assert {"add_sub", "pipeline_async", "pipeline_ensemble"} <= set(models)
            image = np.zeros((1, 16, 16, 3), np.uint8)
            a, b = (models[name].infer(IMAGE=image)["LABEL"] for name in ("pipeline_sync", "pipeline_async"))
            assert a.shape == b.shape == (1, 1)
            with pytest.raises(KeyError, match="no model 'ad_sub' was loaded; there are add_sub"):
                models["ad_sub"]

        def test_part_of_a_repository(load_repository):
            models = load_repository("repository", models=["add_sub", "repeat"])
            assert list(models) == ["add_sub", "repeat"] == [model.name for model in models.kernel.models()]

        def test_an_ensemble_brings_its_steps(load_model):
            model = load_model("repository/pipeline_ensemble")
            assert model.infer(IMAGE=np.zeros((2, 16, 16, 3), np.uint8))["LABEL"].shape == (2, 1)

        def test_a_deadline(load_model, virtual_time):
            model = load_model("repository/repeat")
            with pytest.raises(ServingError, match="deadline .* passed after 0.500 s while it was executing"):
                model.submit(IN=[1], DELAY_MS=[60000], timeout=0.5).all()
    """
    outcome(tests, code, passed=6)


def test_async_tests_need_no_other_plugin(tests: pytest.Pytester) -> None:
    code = """
        import asyncio
        import pytest

        @pytest.fixture
        def repeat(load_model):
            return load_model("repository/repeat")  # loaded before the loop runs

        async def test_infer(load_model):
            model = await load_model("repository/add_sub")
            responses = await asyncio.gather(*(model.infer(A=[k], B=[1]) for k in range(10)))
            assert [response["SUM"].tolist() for response in responses] == [[k + 1] for k in range(10)]

        async def test_repository(load_repository):
            models = await load_repository("repository", models=["add_sub"])
            call = await models["add_sub"].submit(A=[1], B=[1])
            assert (await call.result())["SUM"].tolist() == [2] and call.done and len(call.responses) == 1

        class TestGroup:
            async def test_stream(self, repeat):
                assert [response["OUT"].tolist() async for response in repeat.stream(IN=[1, 2])] == [[1], [2]]
                async for response in repeat.stream(IN=range(1000)):
                    break

        @pytest.mark.parametrize("minutes", [1, 100])
        async def test_virtual_time(repeat, virtual_time, minutes):
            began = virtual_time.now
            await repeat.infer(IN=[1], DELAY_MS=[60_000 * minutes])
            await virtual_time.advance(60)
            assert virtual_time.now - began == pytest.approx(60 * (minutes + 1))

        async def test_failure(repeat):
            assert (await repeat.infer(IN=[1]))["OUT"].tolist() == [2]
    """
    result = outcome(tests, code, passed=5, failed=1)
    result.stdout.fnmatch_lines(["E*assert [[]1[]] == [[]2[]]"])
    result.stdout.no_fnmatch_line("*Leak*")


def test_async_tests_that_hang(tests: pytest.Pytester) -> None:
    write(tests.path, "never", NEVER)
    code = """
        import asyncio

        async def test_request(load_model):
            model = await load_model("never")
            await model.infer(X=[1], id="r")

        async def test_left(load_model):
            model = await load_model("never")
            await model.submit(X=[1], id="left")

        async def test_itself(load_model):
            await load_model("never")
            await asyncio.Event().wait()
    """
    result = outcome(tests, code, failed=3)
    # Without pytest's summary, which says it all again where the variable CI is set.
    lines = "\n".join(result.outlines).partition("short test summary info")[0]
    assert lines.count("kernel.testing.Deadlock: deadlock: nothing is left that could happen\n") == 3
    assert lines.count("request 'r' to model 'never' is executed by 'never_0', which stands at") == 1
    assert lines.count("request 'left' to model 'never' is executed by 'never_0', which stands at") == 1
    assert 'in test_request: await model.infer(X=[1], id="r")' in lines
    assert "in test_itself: await asyncio.Event().wait()" in lines and "found when the test had ended" in lines
    result.stdout.no_fnmatch_line("*never retrieved*")


@pytest.mark.parametrize("plugin", ["anyio", "asyncio"])
def test_beside_other_async_plugins(plugin: str, tests: pytest.Pytester) -> None:
    """The test runs on their loop, and its models too."""
    module = {"anyio": "anyio.pytest_plugin", "asyncio": "pytest_asyncio.plugin"}[plugin]
    pytest.importorskip(module)
    code = f"""
        import asyncio
        import pytest
        from kernel.testing import Unanswered

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.{plugin}
        async def test_infer(load_model):
            model = await load_model("repository/add_sub")
            assert (await model.infer(A=[1], B=[1]))["SUM"].tolist() == [2]
            assert type(asyncio.get_running_loop()).__name__ != "KitLoop"

        @pytest.mark.{plugin}
        async def test_virtual_time(load_model, virtual_time):
            with pytest.raises(RuntimeError, match="virtual time needs the kit's own loop"):
                await load_model("repository/add_sub")

        @pytest.mark.{plugin}
        async def test_no_answer(load_model, kernel_kit):
            kernel_kit.limit = 0.01
            model = await load_model("repository/repeat")
            with pytest.raises(Unanswered, match="no final answer within 0.01 s\\n.*is executed by 'repeat_0', which stands"):
                await model.infer(IN=[1], DELAY_MS=[60000])
    """
    outcome(tests, code, "-p", module, passed=3)


def test_a_test_that_fails_says_why_requests_took_so_long(tests: pytest.Pytester) -> None:
    write(tests.path, "never", NEVER)
    write(tests.path, "echo", ECHO)
    write(tests.path, "wrong", "class TritonPythonModel:\n    def execute(self, requests):\n        1 / 0\n")
    code = """
        import pytest
        from kernel import ServingError

        def test_plain(load_model):
            model = load_model("echo")
            for k in range(5):
                model.infer(X=[1], id=f"r{k}")
            with pytest.raises(ServingError):
                load_model("wrong").infer(X=[1], id="w")
            load_model("never").submit(X=[1], id="never")
            model.infer(X=[1])
            assert not "plain"

        async def test_async(load_model):
            model = await load_model("echo")
            await model.infer(X=[1], id="a")
            assert not "async"

        def test_hangs(load_model):
            load_model("never").infer(X=[1], id="h")

        def test_left(load_model):
            load_model("never").submit(X=[1], id="left")

        def test_nothing_is_sent(load_model):
            load_model("echo")
            assert False

        def test_well(load_model):
            load_model("echo").infer(X=[1], id="well")
    """
    result = outcome(tests, code, failed=4, errors=1, passed=2)
    parts = "\n".join(result.outlines).partition("short test summary info")[0].split("requests, and why they took so long")
    assert len(parts) == 5, "a section of each test that has failed and sent something"
    errors, plain, itself, hangs = parts[1:]
    assert plain.index("failed:\n  request 'w' of") < plain.index("without an answer:\n  request 'never' of")
    assert "INTERNAL: " in plain and plain.count("of model 'echo' version 1, ") == 3
    assert "slowest:\n  request 'a' of model 'echo' version 1, " in itself and "failed:" not in itself
    assert "without an answer:\n  request 'h' of model 'never' version 1, " in hangs and "Request cancelled" not in hangs
    assert "without an answer:\n  request 'left' of" in errors
    assert "request 'well'" not in "".join(parts)


def test_errors_help(tests: pytest.Pytester) -> None:
    code = """
        import numpy as np

        def test_input(load_model):
            load_model("repository/add_sub").infer(A=[1], BB=[1])

        def test_value(load_model):
            load_model("repository/repeat").infer(IN=[1.5])

        def test_twice(load_model):
            load_model("repository/add_sub").infer({"A": [1]}, A=[2], B=[1])

        def test_folder(load_model):
            load_model("repository/ad_sub")

        def test_called_model(load_model):
            load_model("repository/pipeline_sync").infer(IMAGE=np.zeros((1, 16, 16, 3), np.uint8))

        def test_output(load_model):
            load_model("repository/add_sub").infer(A=[1], B=[1])["TOTAL"]

        async def test_plain_in_async(load_model, kernel_kit):
            kernel_kit.run(load_model("repository/add_sub"))
    """
    result = outcome(tests, code, failed=7)
    result.stdout.fnmatch_lines(
        [
            "E*ServingError: unexpected inference input 'BB' for model 'add_sub'",
            "E*The model has no input 'BB', its inputs are A, B; did you mean 'B'?",
            "E*ValueError: 'IN' of model 'repeat' wants INT32, got [[]1.5[]] (float64)",
            "E*TypeError: A of model 'add_sub' came twice: in the mapping and by name",
            "E*FileNotFoundError: no folder 'repository/ad_sub' (looked in *); did you mean add_sub*",
            "E*ServingError: *Request for unknown model: 'preprocess' is not found",
            "E*'preprocess' is not loaded in this test: load it with load_model('*preprocess'), or let "
            "fake_model('preprocess', ...) stand in for it",
            "E*KeyError: \"no output 'TOTAL' in the response; it has [[]'SUM', 'DIFFERENCE'[]]\"",
            "E*RuntimeError: this was made for a plain test; in an async test, `await load_model(...)` gives the async form",
        ]
    )
    result.stdout.no_fnmatch_line("*base_events.py*")  # the way through the loop is nobody's business


def test_a_model_that_can_not_be_loaded(tests: pytest.Pytester) -> None:
    write(tests.path, "broken", ECHO + "    def initialize(self, args):\n        1 / 0\n")
    code = """
        def test_it(load_model):
            load_model("broken")
    """
    result = outcome(tests, code, failed=1)
    result.stdout.fnmatch_lines(["E*load failed for model 'broken': version 1 is at UNAVAILABLE state: *ZeroDivisionError*"])


def test_strict_outputs_can_be_switched_off(tests: pytest.Pytester) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                return [answer([1], dtype=np.float64) for _ in requests]
    """
    write(tests.path, "wrong", code)
    test = """
        def test_strict(load_model):
            load_model("wrong").infer(X=[1])

        def test_lenient(load_model):
            assert load_model("wrong", strict_outputs=False).infer(X=[1])["Y"].dtype == "float64"
    """
    result = outcome(tests, test, passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*model 'wrong' does not keep to its config: output 'Y' is FP64, its config declares FP32"])
    tests.makeini("[pytest]\nkernel_strict_outputs = false\n")
    outcome(tests, test, passed=2)


def test_an_input_that_is_called_like_an_option(tests: pytest.Pytester) -> None:
    io = 'input [ { name: "id" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    write(tests.path, "m", ECHO.replace('"X"', '"id"'), io=io)
    code = """
        def test_it(load_model):
            model = load_model("m")
            assert model.infer(id=[7], priority=1)["Y"].tolist() == [7]
    """
    outcome(tests, code, passed=1)


def test_several_models_share_a_kernel(tests: pytest.Pytester) -> None:
    write(tests.path, "echo", ECHO)
    write(tests.path / "other", "echo", ECHO)
    code = """
        import pytest

        def test_it(load_model):
            echo, repeat = load_model("echo"), load_model("repository/repeat")
            assert echo.kernel is repeat.kernel
            assert load_model("echo").infer(X=[1])["Y"].tolist() == [1]  # loaded once
            with pytest.raises(ValueError, match="two models are called 'echo'"):
                load_model("other/echo")
    """
    outcome(tests, code, passed=1)


def test_a_request_in_flight_while_others_are_sent(tests: pytest.Pytester) -> None:
    slow = """
        class TritonPythonModel:
            def execute(self, requests):
                time.sleep(0.01)
                for request in requests:
                    request.get_response_sender().send(answer([len(requests)]), flags=1)
    """
    write(tests.path, "slow", slow, f"max_batch_size: 8 dynamic_batching {{ }} {DECOUPLED}")
    code = """
        def test_it(load_model):
            model = load_model("slow")
            calls = [model.submit(X=[[k]]) for k in range(9)]
            assert [call.done for call in calls] == [False] * 9
            assert max(call.result()["Y"].tolist()[0] for call in calls) > 1
    """
    result = outcome(tests, code, failed=1)  # and it is strict: the model forgets the batch dimension
    result.stdout.fnmatch_lines(["E*output 'Y' has shape [[]1[]], its config declares [[]-1[]] behind the batch dimension"])


def test_it_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    """The kernel is not imported by a test run that uses none of the fixtures, nor the kit by the kernel."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'kernel_pytest' in sys.modules\n"
        "    assert not {name for name in sys.modules if name.partition('.')[0] in ('kernel', 'numpy')}\n"
        "    import kernel\n"
        "    assert 'kernel.testing' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", *ARGUMENTS, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr

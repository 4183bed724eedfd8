"""`kernel serve --replicas`: real processes that share their ports, what becomes of them, and what is left at the end."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.serving import BROKEN, ECHO, FREE_PORTS, SLEEPER, Server, command, serving, wait_until, write_model
from kernel.rules import rendezvous

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")

KILLS = 5  # bench/reloads.py has a hundred

PROCESS = 'parameters { key: "placement" value { string_value: "process" } }'
#: Answers with the process that has started the one which it was forked from.
FAMILY = """\
    def execute(self, requests):
        import os
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        y = np.array([int(stat.rpartition(")")[2].split()[1])], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for _ in requests]
"""

#: What all processes of a test have in their environment.
MARK = "KERNEL_TEST_GROUP"


def marked(mark: str) -> set[int]:
    """Return the processes that have this mark, but for those that have ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return {pid for pid in found if is_alive(pid)} - {os.getpid()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def serves(server: Server) -> list[tuple[int, float]]:
    """Return the processes that have told that they serve, in order, and after how many seconds."""
    found = re.findall(r"replica \d+ \(process (\d+)\) serves, ([\d.]+) s after", server.text())
    return [(int(pid), float(seconds)) for pid, seconds in found]


def spare(server: Server, number: int) -> int:
    """Return the process of the spare when the last of so many waits for a place."""
    wait_until(lambda: server.text().count("waits for a replica's place") >= number, 60.0)
    return int(re.findall(r"a spare \(process (\d+)\) waits for a replica's place", server.text())[number - 1])


@contextmanager
def group(folder: Path, count: int, *arguments: object) -> Iterator[Server]:
    """Serve with replicas, all of which are up; when the test is over nothing of them may be left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(folder))
        with serving(folder, *arguments, "--replicas", count) as server:
            wait_until(lambda: len(serves(server)) == count, 60.0)
            assert len(marked(str(folder))) > count
            yield server
    wait_until(lambda: not marked(str(folder)))


def test_replicas_serve_at_one_port_and_end_together(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "sleeper", SLEEPER)
    with group(tmp_path, 2, repository) as server:
        assert server.text().count("Started HTTPService") == 1
        answers: list[object] = []
        threads = [threading.Thread(target=lambda: answers.append(server.infer("sleeper", 1.0)[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: (repository / "sleeper/1/started").exists())
        time.sleep(0.2)  # for the others, who wait for the first, or on the other replica
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0
        for thread in threads:
            thread.join()
        assert answers == [200] * 4


def test_a_signal_to_all_processes_is_one_stop(tmp_path: Path) -> None:
    """As a service manager does that tells every process of a group."""
    repository = tmp_path / "repository"
    write_model(repository, "sleeper", SLEEPER)
    with group(tmp_path, 2, repository) as server:
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(server.infer("sleeper", 1.5)[0]))
        thread.start()
        wait_until(lambda: (repository / "sleeper/1/started").exists())
        for pid, _ in serves(server):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)  # which makes two signals of it
        server.signal()
        assert server.wait() == 0
        thread.join()
        assert answers == [200]


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "sleeper", SLEEPER)
    with group(tmp_path, 2, repository) as server:

        def ask() -> None:
            with pytest.raises((OSError, http.client.HTTPException)):
                server.infer("sleeper", 60.0, 90.0)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: (repository / "sleeper/1/started").exists())
        server.signal()
        time.sleep(0.5)
        server.signal()
        began = time.monotonic()
        assert server.wait() == 1
        assert time.monotonic() - began < 25  # those that stop in their time may take 30
        thread.join()


def test_a_start_that_fails_says_why_once(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "broken", BROKEN)
    done = subprocess.run(
        command("serve", *FREE_PORTS, "--replicas=3", tmp_path / "repository"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("error: creating server:") == 1
    assert done.stderr.count("loading: broken:1") == 1


def test_the_live_page_shows_sums(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "echo")
    with serving(tmp_path, tmp_path / "repository", "--replicas=2") as server:
        for _ in range(20):
            assert server.infer("echo", 1.0)[0] == 200  # each on a connection of its own
        with socket.create_connection(("127.0.0.1", server.port), 60) as page, page.makefile("rb") as events:
            page.sendall(b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            told: dict[str, Any] = {}
            while told.get("group") != {"replicas": [0, 1], "trouble": ""} or not told.get("rows"):
                line = events.readline()
                assert line, "the page has ended"
                if line.startswith(b"event: "):
                    told[line[7:].decode().strip()] = json.loads(events.readline()[6:])
            assert told["rows"][0][:3] == ["echo", "1", "READY"] and told["rows"][0][4][0] == 20
        model = server.request("GET", "/dashboard/model/echo")[1]
        assert model["versions"][0]["success"] == 20
        assert sorted(one["name"][-9:] for one in model["versions"][0]["instances"]) == ["replica 0", "replica 1"]


def test_ports_that_are_taken_are_told_once(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "echo")
    with serving(tmp_path, tmp_path / "repository") as other:
        arguments = [*FREE_PORTS, f"--http-port={other.port}", "--replicas=2", tmp_path / "repository"]
        done = subprocess.run(command("serve", *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    wanted = f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{other.port}' already in use "
    assert done.stderr.count(wanted) == 1
    assert done.stderr.count("another process has that port (ss -ltnp tells which); --http-port=N takes another one") == 1


def test_two_services_at_one_port_end_the_start(tmp_path: Path) -> None:
    """Which is found out as late as the ports open."""
    write_model(tmp_path / "repository", "echo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [*FREE_PORTS, f"--http-port={port}", f"--grpc-port={port}", "--replicas=2", tmp_path / "repository"]
    done = subprocess.run(command("serve", *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use " in done.stderr


PROCESSES = "--backend-config=python,default-placement=process"


def test_replicas_end_with_their_supervisor(tmp_path: Path) -> None:
    """And with them the processes of their models."""
    write_model(tmp_path / "repository", "echo")
    with group(tmp_path, 2, tmp_path / "repository", PROCESSES) as server:
        assert len(marked(str(tmp_path))) >= 5
        server.process.kill()
        server.wait()
        wait_until(lambda: not marked(str(tmp_path)), 60.0)


def test_nothing_is_left_of_a_replica_that_is_killed(tmp_path: Path) -> None:
    """Of the processes of its models."""
    write_model(tmp_path / "repository", "echo")
    with group(tmp_path, 2, tmp_path / "repository", PROCESSES) as server:
        spare(server, 1)
        count = len(marked(str(tmp_path)))
        os.kill(serves(server)[0][0], signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        wait_until(lambda: len(marked(str(tmp_path))) == count)


def everywhere(server: Server, path: str, count: int = 30) -> list[object]:
    """Return the different answers to a GET on so many connections, of which each replica accepts some."""
    found: list[object] = []
    for _ in range(count):
        answer = server.request("GET", path)[1]
        if answer not in found:
            found.append(answer)
    return found


def is_served_everywhere(server: Server, model: str) -> bool:
    return all(server.infer(model, 1.0)[0] == 200 for _ in range(30))


def test_a_load_is_one_of_all_and_outlives_a_replica(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "echo")
    write_model(repository, "broken", BROKEN)
    with group(tmp_path, 2, repository, "--model-control-mode=explicit") as server:
        assert server.request("POST", "/v2/repository/models/echo/load")[0] == 200
        assert is_served_everywhere(server, "echo")
        status, answer = server.request("POST", "/v2/repository/models/broken/load")
        assert status >= 400 and "no weights today" in answer["error"] and "replica" not in answer["error"]
        assert server.request("POST", "/v2/repository/models/nobody/load")[0] >= 400
        index = {line["name"]: line.get("state") for line in server.request("POST", "/v2/repository/index")[1]}
        assert index == {"echo": "READY", "broken": "UNAVAILABLE"}

        os.kill(serves(server)[0][0], signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        assert is_served_everywhere(server, "echo")

        assert server.request("POST", "/v2/repository/models/echo/unload")[0] == 200
        assert all(server.infer("echo", 1.0)[0] != 200 for _ in range(30))
        lines = server.request("POST", "/v2/repository/index")[1]
        assert {"name": "echo", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in lines


def test_settings_and_regions_are_those_of_all(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "echo")
    with group(tmp_path, 2, tmp_path / "repository") as server:
        shown = server.request("POST", "/v2/logging", {"log_verbose_level": 1})
        assert shown[0] == 200 and shown[1]["log_verbose_level"] == 1
        assert everywhere(server, "/v2/logging") == [shown[1]]
        shown = server.request("POST", "/v2/models/echo/trace/setting", {"trace_rate": "7"})
        assert shown[1]["trace_rate"] == "7"
        assert everywhere(server, "/v2/models/echo/trace/setting") == [shown[1]]
        status, answer = server.request("POST", "/v2/trace/setting", {"trace_rate": "none"})
        assert status == 400 and "replica" not in answer["error"]

        with open(f"/dev/shm/kernel_test_{os.getpid()}", "wb") as file:
            file.write(bytes(64))
        try:
            region = "/v2/systemsharedmemory/region/here/register"
            assert server.request("POST", region, {"key": f"/kernel_test_{os.getpid()}", "byte_size": 64})[0] == 200
            assert server.request("POST", region, {"key": f"/kernel_test_{os.getpid()}", "byte_size": 64})[0] == 400
            (regions,) = everywhere(server, "/v2/systemsharedmemory/status")
            assert regions[0]["name"] == "here"  # type: ignore[index]
            assert server.request("POST", "/v2/systemsharedmemory/unregister")[0] == 200
            assert everywhere(server, "/v2/systemsharedmemory/status") == [[]]
        finally:
            os.unlink(f"/dev/shm/kernel_test_{os.getpid()}")


def test_statistics_and_what_is_in_flight_are_those_of_all(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "echo")
    write_model(repository, "sleeper", SLEEPER)
    with group(tmp_path, 2, repository) as server:
        for _ in range(40):
            assert server.infer("echo", 1.0)[0] == 200
        (answer,) = everywhere(server, "/v2/models/echo/stats")
        (stats,) = answer["model_stats"]  # type: ignore[index]
        assert stats["inference_count"] == stats["inference_stats"]["success"]["count"] == 40
        threads = [threading.Thread(target=server.infer, args=("sleeper", 1.5)) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(server.request("GET", "/v2/inflight")[1]["inflight"]) == 4)
        _, told = server.request("GET", "/v2/kernel/scale")
        assert (told["server"]["current"], told["server"]["reason"]) == (2, "the number of its replicas is fixed (--replicas)")
        assert [(line["name"], line["current"], line["max"]) for line in told["models"]] == [("echo", 2, 2), ("sleeper", 2, 2)]
        for thread in threads:
            thread.join()
        assert server.request("GET", "/v2/models/nobody/stats")[0] == 400


def test_the_metrics_page_is_that_of_all(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "echo")
    with group(tmp_path, 2, tmp_path / "repository", "--metrics-config=summary_latencies=true") as server:
        for _ in range(40):
            assert server.infer("echo", 1.0)[0] == 200
        port = re.search(r"Started Metrics Service at 127.0.0.1:(\d+)", server.text())
        assert port

        def page(query: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics{query}", timeout=10) as answer:  # type: ignore[index]
                return str(answer.read().decode())

        for _ in range(10):
            assert 'nv_inference_request_success{model="echo",version="1"} 40\n' in page("")
        assert re.search(r'nv_inference_request_summary_us{model="echo",version="1",quantile="0.5"} [1-9]', page(""))
        found = re.findall(r'nv_inference_request_success{model="echo",version="1",replica="(\d)"} (\d+)', page("?replica=all"))
        assert [k for k, _ in found] == ["0", "1"] and sum(int(count) for _, count in found) == 40


def test_ready_is_who_is_ready_everywhere(tmp_path: Path) -> None:
    """One replica that can't load a model any more: no health check may find the others ready."""
    repository = tmp_path / "repository"
    folder = write_model(repository, "echo", BROKEN_LATER)
    with group(tmp_path, 2, repository, "--exit-on-error=false") as server:
        assert {server.request("GET", "/v2/health/ready")[0] for _ in range(20)} == {200}
        (folder / "1/broken").touch()
        os.kill(serves(server)[0][0], signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        wait_until(lambda: {server.request("GET", "/v2/health/ready")[0] for _ in range(20)} == {400})


#: Fails to load where there is a file `broken` in the version folder.
BROKEN_LATER = """\
    def initialize(self, args):
        if (Path(__file__).parent / "broken").exists():
            raise ValueError("no weights any more")

""" + ECHO


def test_what_concerns_all_goes_over_grpc_too(tmp_path: Path) -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    repository = tmp_path / "repository"
    write_model(repository, "echo")
    with group(tmp_path, 2, repository, "--model-control-mode=explicit") as server:
        port = re.search(r"Started GRPCInferenceService at 127.0.0.1:(\d+)", server.text())
        assert port
        client = grpc.InferenceServerClient(f"127.0.0.1:{port[1]}")
        client.load_model("echo")
        assert is_served_everywhere(server, "echo")
        assert client.get_inference_statistics("echo", as_json=True)["model_stats"][0]["inference_count"] == "30"
        assert client.update_log_settings({"log_verbose_level": 1}, as_json=True)
        assert all(settings["log_verbose_level"] == 1 for settings in everywhere(server, "/v2/logging"))  # type: ignore[index]
        assert [line["state"] for line in client.get_model_repository_index(as_json=True)["models"]] == ["READY"]
        client.unload_model("echo")
        assert all(server.infer("echo", 1.0)[0] != 200 for _ in range(30))
        with pytest.raises(grpc.InferenceServerException, match="nobody"):
            client.load_model("nobody")
        assert client.is_server_ready()
        client.close()


def test_all_are_replaced_under_load_and_no_request_fails(tmp_path: Path) -> None:
    """Over connections that are kept, new ones, and gRPC; twice. The new ones have what has been changed since the start."""
    grpc = pytest.importorskip("tritonclient.grpc")
    write_model(tmp_path / "repository", "echo")
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]})
    with group(tmp_path, 2, tmp_path / "repository", "--model-control-mode=explicit") as server:
        assert server.request("POST", "/v2/repository/models/echo/load")[0] == 200
        found = re.search(r"Started GRPCInferenceService at 127.0.0.1:(\d+)", server.text())
        assert found
        port = found[1]
        over = threading.Event()
        counts = [0] * 4
        failed: list[object] = []

        def kept(k: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            while not over.is_set():
                connection.request("POST", "/v2/models/echo/infer", body)
                response = connection.getresponse()
                assert response.read() and response.status == 200
                counts[k] += 1
            connection.close()

        def new(k: int) -> None:
            while not over.is_set():
                ready = server.request("GET", "/v2/health/ready")
                answer = server.infer("echo", 1.0, 30.0)
                assert (ready[0], answer[0]) == (200, 200), (ready, answer)
                counts[k] += 1

        def over_grpc(k: int) -> None:
            client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
            tensor = grpc.InferInput("X", [1], "FP32")
            tensor.set_data_from_numpy(np.ones(1, np.float32))
            while not over.is_set():
                client.infer("echo", [tensor])
                counts[k] += 1
            client.close()

        def guarded(run: Callable[[int], None], k: int) -> None:
            try:
                run(k)
            except BaseException as error:
                failed.append(error)

        runs = (kept, kept, new, over_grpc)
        threads = [threading.Thread(target=guarded, args=(run, k)) for k, run in enumerate(runs)]
        for thread in threads:
            thread.start()
        for turn in (1, 2):
            server.signal(signal.SIGUSR2)
            wait_until(lambda: server.text().count("has left: exit status 0") == 2 * turn, 60.0)  # noqa: B023
        over.set()
        for thread in threads:
            thread.join()
        assert not failed and min(counts) > 0
        assert len(serves(server)) == 6
        server.signal()
        assert server.wait() == 0


def test_a_replica_that_is_killed_costs_what_it_had_in_flight_and_no_more(tmp_path: Path) -> None:
    """Some times, under load: who asks after it is served, and it comes back."""
    write_model(tmp_path / "repository", "echo")
    with group(tmp_path, 3, tmp_path / "repository") as server:
        over = threading.Event()
        failed: list[tuple[float, float]] = []  # when requests began that were not answered, and ended
        count = [0] * 4

        def ask(k: int) -> None:
            while not over.is_set():
                began = time.monotonic()
                try:
                    status, answer = server.infer("echo", 1.0, 30.0)
                    if status == 503 and "has ended before it has answered" in str(answer):  # it was handed over
                        failed.append((began, time.monotonic()))
                        continue
                    assert status == 200, answer
                    count[k] += 1
                except (OSError, http.client.HTTPException):
                    failed.append((began, time.monotonic()))

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(count))]
        for thread in threads:
            thread.start()
        kills: list[tuple[float, float]] = []  # from when until when each took place
        for kill in range(KILLS):
            pid = serves(server)[-3][0]  # of the three that are there the one that has served the longest
            before = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(pid))  # noqa: B023
            kills.append((before, time.monotonic()))
            wait_until(lambda: len(serves(server)) == 4 + kill, 60.0)  # noqa: B023
        over.set()
        for thread in threads:
            thread.join()
        assert min(count) > 0
        late = [(began, end) for began, end in failed if not any(began <= gone and before <= end for before, gone in kills)]
        assert not late and len(failed) <= KILLS * len(count)


def test_the_spare_takes_the_place_of_who_dies(tmp_path: Path) -> None:
    """With the log file that is there then, and what has been loaded since. One that is killed is followed by another."""
    repository = tmp_path / "repository"
    write_model(repository, "echo")
    with group(tmp_path, 2, repository, "--model-control-mode=explicit") as server:
        first = spare(server, 1)
        assert server.request("POST", "/v2/repository/models/echo/load")[0] == 200
        os.kill(first, signal.SIGKILL)
        second = spare(server, 2)
        os.kill(serves(server)[0][0], signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        assert serves(server)[2][0] == second and is_served_everywhere(server, "echo")
        os.kill(spare(server, 3), signal.SIGSTOP)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 4, 60.0)  # from nothing
        assert is_served_everywhere(server, "echo")
        server.signal()
        assert server.wait() == 0


def test_the_spare_has_what_processes_of_models_are_forked_from(tmp_path: Path) -> None:
    """Where a replica has had that: so its models are not waited for any longer than others."""
    write_model(tmp_path / "repository", "family", FAMILY, more=PROCESS)
    with group(tmp_path, 2, tmp_path / "repository") as server:
        first = spare(server, 1)
        os.kill(serves(server)[0][0], signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        os.kill(serves(server)[1][0], signal.SIGKILL)  # so the other one alone answers, or nobody
        found: list[float] = []

        def answered() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, answer = server.infer("family", 1.0)
                if status == 200:
                    found[:] = answer["outputs"][0]["data"]
            return bool(found) and found == [first]

        wait_until(answered, 60.0)


def test_all_are_replaced_by_http_and_the_answer_says_so(tmp_path: Path) -> None:
    """And that they are not, where a model fails to load."""
    repository = tmp_path / "repository"
    folder = write_model(repository, "echo", BROKEN_LATER)
    with group(tmp_path, 2, repository, "--replica-spare=false") as server:
        path = "/v2/kernel/replicas/reload"
        before = {pid for pid, _ in serves(server)}
        assert server.request("POST", path, timeout=60) == (200, {"replaced": 2})
        assert len({pid for pid, _ in serves(server)} - before) == 2
        assert server.infer("echo", 1.0)[0] == 200
        (folder / "1/broken").touch()
        wait_until(lambda: server.text().count("has left: exit status 0") == 2, 60.0)
        status, answer = server.request("POST", path, timeout=60)
        assert status == 503 and "so these of 2 replicas are not replaced: " in answer["error"]
        assert server.infer("echo", 1.0)[0] == 200
        assert server.request("GET", path)[0] == 405


def test_a_replica_that_hangs_begins_anew(tmp_path: Path) -> None:
    """And a load waits for it no longer than that; the supervisor may be suspended for as long as one likes."""
    repository = tmp_path / "repository"
    write_model(repository, "echo")
    with group(tmp_path, 2, repository, "--replica-hang-seconds=2", "--model-control-mode=explicit") as server:
        assert server.request("POST", "/v2/repository/models/echo/load")[0] == 200
        server.signal(signal.SIGSTOP)
        time.sleep(4)
        server.signal(signal.SIGCONT)
        assert is_served_everywhere(server, "echo")
        os.kill(serves(server)[0][0], signal.SIGSTOP)
        status, answer = server.request("POST", "/v2/repository/models/echo/load", timeout=30)
        assert status == 503 and "has ended" in answer["error"]
        wait_until(lambda: len(serves(server)) == 3, 60.0)
        assert server.text().count("as it was stopped: it is killed") == 1
        assert server.request("POST", "/v2/repository/models/echo/load")[0] == 200


def test_a_server_alone_has_no_replicas_to_replace(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "echo")
    with serving(tmp_path, tmp_path / "repository") as server:
        status, answer = server.request("POST", "/v2/kernel/replicas/reload")
        assert status == 501 and "--replicas" in answer["error"]


#: Computes in the interpreter for some milliseconds; says who has, by its process.
COMPUTING = """\
    def execute(self, requests):
        import os
        number = 0
        for k in range(100_000):
            number += k & 7
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid()], np.float32))]) for r in requests]
"""


@pytest.mark.parametrize("placement", ["loop", "thread"])
def test_one_grpc_connection_uses_both_replicas(tmp_path: Path, placement: str) -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    more = f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
    write_model(tmp_path / "repository", "work", COMPUTING, more=more)
    with group(tmp_path, 2, tmp_path / "repository") as server:
        found = re.search(r"Started GRPCInferenceService at 127.0.0.1:(\d+)", server.text())
        assert found
        client = grpc.InferenceServerClient(f"127.0.0.1:{found[1]}")
        tensor = grpc.InferInput("X", [1], "FP32")
        tensor.set_data_from_numpy(np.ones(1, np.float32))
        answers: queue.Queue[tuple[object, object]] = queue.Queue()
        wanted = 0

        def ask(count: int) -> set[float]:
            for _ in range(count):
                client.async_infer("work", [tensor], lambda result, error: answers.put((result, error)))
            who = set()
            for _ in range(count):
                result, error = answers.get(timeout=60)
                assert error is None
                who.add(float(result.as_numpy("Y")[0]))  # type: ignore[attr-defined]
            return who

        def both() -> bool:
            nonlocal wanted
            wanted += 64
            return len(ask(64)) == 2

        wait_until(both, 60.0)
        stats = server.request("GET", "/v2/models/work/stats")[1]["model_stats"][0]
        assert stats["inference_count"] == wanted
        client.close()


def test_the_number_follows_the_load(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "sleeper", SLEEPER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(tmp_path))
        with serving(tmp_path, repository, "--replicas", "1..2") as server:
            wait_until(lambda: len(serves(server)) == 1, 60.0)
            wait_until(lambda: server.request("GET", "/v2/kernel/scale")[1]["server"]["max"] == 2, 60.0)
            told = server.request("GET", "/v2/kernel/scale")[1]["server"]
            assert (told["current"], told["wanted"], told["min"]) == (1, 1, 1)
            answers: list[object] = []
            threads = [threading.Thread(target=lambda: answers.append(server.infer("sleeper", 2.0)[0])) for _ in range(3)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(serves(server)) == 2, 60.0)
            wait_until(lambda: server.request("GET", "/v2/kernel/scale")[1]["server"]["current"] == 2, 60.0)
            assert re.search(r"there are to be 2 replicas, 1 were \((1 -> 2: .*)\)", server.text())
            for thread in threads:
                thread.join()
            assert answers == [200] * 3
            os.kill(server.process.pid, signal.SIGTERM)
            assert server.wait() == 0
    wait_until(lambda: not marked(str(tmp_path)))


#: Y = the sum of all X of a sequence so far.
SUMMING = """\
    sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            id = request.correlation_id()
            before = 0.0 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.sums[id]
            self.sums[id] = before + float(request.inputs()[0].as_numpy()[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([self.sums[id]], np.float32))]))
        return responses
"""


def test_a_sequence_over_eight_connections_to_four_replicas_one_of_them_killed(tmp_path: Path) -> None:
    """Each answer is right, or an error says why there is none; never is one wrong."""
    more = "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 64 } }"
    write_model(tmp_path / "repository", "sum", SUMMING, more=more)
    with group(tmp_path, 4, tmp_path / "repository") as server:
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(8)]
        turn = 0

        def say(id: int, value: float, *flags: str) -> tuple[int, str]:
            nonlocal turn
            turn += 1
            connection = connections[turn % 8]
            parameters = {"sequence_id": id, **dict.fromkeys(flags, True)}
            inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]
            try:
                connection.request("POST", "/v2/models/sum/infer", json.dumps({"inputs": inputs, "parameters": parameters}))
                response = connection.getresponse()
                body = json.loads(response.read())
            except (OSError, http.client.HTTPException):
                connection.close()  # it was one to who has been killed
                return 0, ""
            return response.status, body["error"] if response.status != 200 else str(body["outputs"][0]["data"][0])

        sums: dict[int, float] = {}
        refused: list[str] = []
        for step in range(12):
            if step == 4:
                os.kill(serves(server)[1][0], signal.SIGKILL)
            for id in range(1, 33):
                value = float(id + step)
                begins = id not in sums
                status, said = say(id, value, *(["sequence_start"] if begins else []))
                if status == 200:
                    sums[id] = value if begins else sums[id] + value
                    assert float(said) == sums[id]
                else:
                    assert step >= 4
                    refused.append(said)
                    sums.pop(id, None)  # from the beginning
        assert len(sums) == 32  # all go on in the end
        assert 0 < len(refused) < 60
        assert all("replica" in said or not said for said in refused) and any("begin anew" in said for said in refused), refused
        for connection in connections:
            connection.close()


#: Says which process executes it.
WHERE = """\
    def execute(self, requests):
        import os
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid()], np.float32))]) for r in requests]
"""


def test_a_model_that_lives_at_one_replica_is_served_by_all(tmp_path: Path) -> None:
    """And comes back with the one that is killed, or moves to another."""
    more = 'parameters { key: "replicate" value { string_value: "one" } }'
    write_model(tmp_path / "repository", "where", WHERE, more=more)
    with group(tmp_path, 3, tmp_path / "repository") as server:

        def homes() -> set[float]:
            """Return where it is executed, 0.0 for where it is refused."""
            answers = [server.infer("where", 1.0) for _ in range(20)]
            return {answer["outputs"][0]["data"][0] if status == 200 else 0.0 for status, answer in answers}

        (first,) = homes()
        (pid,) = {pid for pid, _ in serves(server) if float(np.float32(pid)) == first}
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(serves(server)) == 4, 60.0)
        wait_until(lambda: len(now := homes()) == 1 and not now & {first, 0.0}, 60.0)  # it may move, and back again
        assert server.request("GET", "/v2/models/where/ready")[0] == 200


#: Calls the model whose name it is given by its parameter `next`.
CALLER = """\
    def initialize(self, args):
        import json
        self.next = json.loads(args["model_config"])["parameters"]["next"]["string_value"]

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.Tensor("X", request.inputs()[0].as_numpy())
            response = pb_utils.InferenceRequest(model_name=self.next, requested_output_names=["Y"], inputs=[x]).exec()
            answers.append(pb_utils.InferenceResponse(response.output_tensors(), response.error()))
        return answers
"""


def living(index: int) -> Iterator[str]:
    """Give names of models that live at that one of two replicas."""
    return (name for k in itertools.count() if rendezvous(("0", "1"), name := f"m{k}") == str(index))


def test_models_at_two_replicas_that_call_each_other_are_refused(tmp_path: Path) -> None:
    """Whether they run on the loop, on threads or in processes of their own."""
    pairs = dict(zip(("loop", "thread", "process"), zip(living(0), living(1)), strict=False))
    for placement, pair in pairs.items():
        for name, other in (pair, pair[::-1]):
            parameters = (("replicate", "one"), ("next", other), ("placement", placement))
            more = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters]
            write_model(tmp_path / "repository", name, CALLER, more="\n".join(more))
    with group(tmp_path, 2, tmp_path / "repository") as server:
        for pair in pairs.values():
            for name in pair:
                status, answer = server.infer(name, 1.0, 60.0)
                assert status != 200 and "could only wait for itself: " in answer["error"], (name, answer)

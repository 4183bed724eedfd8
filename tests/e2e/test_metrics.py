"""The metrics port of `kernel serve`: opened with the others, true to what was asked, and closed at the end."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path

from .serving import REPOSITORY, Server, run, serving, wait_until, write_model

LOCAL = ("--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false")

#: Waits for the file `go` in the version folder.
WAITS = """\
    def execute(self, requests):
        while not (Path(__file__).parent / "go").exists():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


def metrics_port(server: Server) -> int:
    found = re.search(r'"Started Metrics Service at 127\.0\.0\.1:(\d+)"', server.text())
    assert found is not None, server.text()
    return int(found[1])


def page(port: int) -> dict[str, str]:
    """Return series -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_server_is_scraped(tmp_path: Path) -> None:
    with serving(tmp_path, REPOSITORY, "--metrics-config=summary_latencies=true") as server:
        port = metrics_port(server)
        body = {"inputs": [{"name": name, "datatype": "FP32", "shape": [1], "data": [1]} for name in "AB"]}
        for _ in range(3):
            assert server.request("POST", "/v2/models/add_sub/infer", body)[0] == 200
        found = page(port)
        label = 'model="add_sub",version="1"'
        assert found[f"nv_inference_request_success{{{label}}}"] == "3"
        assert found[f"nv_inference_request_summary_us_count{{{label}}}"] == "3"
        assert found[f"kernel_queue_seconds_count{{{label}}}"] == "3"
        assert found["nv_pinned_memory_pool_total_bytes"] == "268435456"
        if Path("/proc/meminfo").exists():
            assert int(found["nv_cpu_memory_total_bytes"]) > int(found["nv_cpu_memory_used_bytes"]) > 0
            assert 0 <= float(found["nv_cpu_utilization"]) <= 1
        server.signal()
        assert server.wait() == 0
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_no_page(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    with serving(tmp_path, tmp_path / "models", "--allow-metrics=false") as server:
        assert server.infer("echo", 2.0)[0] == 200
        assert "Metrics Service" not in server.text()


def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run("serve", tmp_path / "models", *LOCAL, "--metrics-port", port)
    assert result.returncode == 1
    assert f"failed to start Metrics service: Unavailable - Socket '127.0.0.1:{port}' already in use" in result.stderr


def test_the_gauge_of_waiting_requests(tmp_path: Path) -> None:
    """BC71, over the wire: five at once, one runs, four wait; three when one of their clients goes; none at the end."""
    folder = write_model(tmp_path / "models", "waits", WAITS)
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    head = f"POST /v2/models/waits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    pending = 'nv_inference_pending_request_count{model="waits",version="1"}'
    gone = 'nv_inference_request_failure{model="waits",reason="CANCELED",version="1"}'
    with serving(tmp_path, tmp_path / "models") as server:
        port = metrics_port(server)
        clients = []
        for k in range(5):
            clients.append(socket.create_connection(("127.0.0.1", server.port), 30))
            clients[-1].sendall(head + body)
            wait_until(lambda k=k: page(port)[pending] == str(k))  # type: ignore[misc]
        clients.pop().close()
        wait_until(lambda: (page(port)[pending], page(port)[gone]) == ("3", "1"))
        (folder / "1" / "go").touch()
        for client in clients:
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
            client.close()
        wait_until(lambda: page(port)[pending] == "0")

"""What the suite does when the reference isn't there, or dies: by stand-ins, so that it need be neither installed nor ill."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import triton
from .conftest import Line, alive
from .servers import RESTARTS, Server
from .wire import NO_ANSWER, Answer, Case, exchange

#: Counts what it is asked, and says so. /die kills it in its first lives, of which `lives` says how many.
DYING = """
import http.server, os, pathlib, signal, sys

lives = pathlib.Path("lives")
life = int(lives.read_text()) if lives.exists() else 0
lives.write_text(str(life + 1))
asked = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        if self.path != "/v2/health/live":
            asked += 1
        if self.path == "/die" and life < int(sys.argv[2]):
            if life % 2:  # otherwise it goes without a word
                print("Signal (11) received.", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        body = str(asked).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

Start = Callable[..., Server]


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def start(lives: int, *, mortal: bool = True) -> Server:
        command = [sys.executable, "-c", DYING]
        server = Server("mortal", lambda *ports: [*command, str(ports[0]), str(lives)], tmp_path / "log", mortal=mortal)
        started.append(server)
        server.wait_live()
        return server

    yield start
    for server in started:
        server.stop()


def told(answer: Answer) -> int:
    return int(answer.lines[0].removeprefix(" = "))


def test_one_that_dies_is_started_again_and_told_all_that_it_was_told(dying: Start) -> None:
    server = dying(2)
    with Line(server) as line:
        assert [told(line.ask(Case("", path=path))) for path in ("/a", "/b", "/die", "/c")] == [1, 2, 3, 4]
    assert server.restarts == 2


def test_one_that_always_dies_gives_no_answer(dying: Start) -> None:
    server = dying(1000)
    with Line(server) as line:
        line.ask(Case("", path="/a"))
        assert line.ask(Case("", path="/die")).status in (NO_ANSWER, 0)
    assert server.restarts == RESTARTS
    with pytest.raises(pytest.skip.Exception, match=r"^mortal dies of it$"):
        alive(server, lambda: exchange(server.port, Case("", path="/a")))


def test_ours_is_not_started_again(dying: Start) -> None:
    server = dying(1, mortal=False)
    with Line(server) as line:
        line.ask(Case("", path="/die"))
        assert line.ask(Case("", path="/a")).status in (NO_ANSWER, 0)
    assert server.restarts == 0


def test_a_story_is_told_again(dying: Start) -> None:
    server = dying(1)

    def story() -> list[int]:
        return [told(exchange(server.port, Case("", path=path))) for path in ("/a", "/die")]

    assert alive(server, story) == [1, 2]
    assert server.restarts == 1


def test_a_mistake_of_the_story_is_no_death(dying: Start) -> None:
    server = dying(1)
    with pytest.raises(ZeroDivisionError):
        alive(server, lambda: 1 // 0)
    assert server.restarts == 0


def test_servers_end_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    run = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
from reference.servers import Server
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
server = Server("sleeps", lambda *ports: sleep, pathlib.Path("log"))
print(server.process.pid, server.memory.key, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", run, str(Path(__file__).parents[1])]
    pid, key = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.split()
    for path in Path("/dev/shm").glob(f"{key[1:]}*"):
        path.unlink()
    limit = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():  # nothing: a zombie
        assert time.monotonic() < limit, "it goes on"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("system", "machine", "python", "glibc", "reason"),
    [
        ("linux", "x86_64", (3, 11), (2, 35), ""),
        ("darwin", "arm64", (3, 11), None, "it runs on Linux x86-64 only, and this is darwin arm64"),
        ("linux", "aarch64", (3, 11), (2, 39), "it runs on Linux x86-64 only, and this is linux aarch64"),
        ("linux", "x86_64", (3, 11), (2, 31), "it needs glibc 2.35 or newer, and here is glibc 2.31"),
        ("linux", "x86_64", (3, 11), None, "it needs glibc 2.35 or newer, and here is another C library"),
        ("linux", "x86_64", (3, 14), (2, 41), "it runs models with Python 3.8 to 3.13, and this is 3.14"),
    ],
)
def test_where_it_cannot_run(
    system: str, machine: str, python: tuple[int, int], glibc: tuple[int, int] | None, reason: str
) -> None:
    assert triton.why_not_here(system, machine, python, glibc) == reason


def test_one_line_says_why_it_cannot_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNEL_REFERENCE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(triton, "why_not_here", lambda *_: "")
    assert triton.main(["--install"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"no reference: it can't be written to {tmp_path / 'file'}: [Errno ")


def test_what_was_cut_off_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REFERENCE_CACHE", str(tmp_path))
    monkeypatch.setattr(triton, "why_not_here", lambda *_: "")
    monkeypatch.setattr(triton, "_see_that_models_run", lambda found: None)
    made: list[Path] = []

    def make(found: triton.Installation) -> None:
        made.append(found.home)
        found.home.mkdir(exist_ok=True)
        if len(made) > 1:
            (found.home / triton.COMPLETE).touch()

    monkeypatch.setattr(triton, "_make", make)
    assert len({triton.install().home for _ in range(3)}) == 1
    assert len(made) == 2


def test_without_arguments_it_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert triton.main([]) == 2
    assert capsys.readouterr().err.startswith("Gets and runs the reference")

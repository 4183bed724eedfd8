"""`kernel completion`: the scripts know all commands and flags, and what becomes of a shell that reads one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernel.cli import commands
from kernel.cli.completion import SHELLS, completion
from kernel.cli.parser import parser_of
from kernel.cli.serve import serve


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert completion([shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_know_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert [name for name in (*commands.COMMANDS, "ray") if name not in text] == []
    dashes = "" if shell == "fish" else "--"
    for flag in ("model-control-mode", "http-port", "grpc-port", "log-format", "max-inflight"):
        assert f"{dashes}{flag}" in text, flag
    assert "on-demand" in text  # a value of a flag
    assert "cuda-memory-pool-byte-size" not in text  # accepted, and not shown by --help either


def test_a_command_that_reads_its_line_otherwise_is_completed_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernel.cli.models.models", lambda arguments: 0)
    assert "models" in script("bash", capsys)


def test_bash_completes_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernel.sh"
    file.write_text(script("bash", capsys))
    (tmp_path / "models").mkdir()

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_kernel kernel '{words[-1]}' '{words[-2]}'"
        text = f"source '{file}'; {asked}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.split()

    assert completed("kernel", "ser") == ["serve"]
    assert completed("kernel", "serve", "--http-po") == ["--http-port"]
    assert completed("kernel", "serve", "--model-control-mode", "p") == ["poll"]
    assert completed("kernel", "check", "mod") == ["models"]


def test_without_shtab_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert completion(["bash"]) == 1
    assert "pip install 'kernel-serve[completion]'" in capsys.readouterr().err


def test_other_shells_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        completion(["tcsh"])
    assert ended.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_a_parser_without_a_line_does_nothing() -> None:
    assert parser_of(serve).knows("--http-port")
    with pytest.raises(ValueError, match="no Parser"):
        parser_of(lambda arguments: 0)

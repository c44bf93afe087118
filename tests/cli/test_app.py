"""The command line's plumbing: exit codes, one-line errors, quick help."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from omnipilot.cli import app
from omnipilot.domain.errors import AmbiguousNameError, BundleError

REFUSED_AT_IMPORT = ("numpy", "rich", "catboost", "omnipilot.advisor", "omnipilot.costmodel")


def run_process(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnipilot", *args],
        capture_output=True, text=True, check=False, env={**os.environ, **env},
    )  # fmt: skip


def test_without_arguments_the_help_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([]) == 0
    out, err = capsys.readouterr()
    assert "omnipilot advise --model" in out
    assert err == ""


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_of_the_table_is_in_the_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app.run(["--help"])
    assert f"\n  {name} " in capsys.readouterr().out


def test_help_imports_no_command_and_no_heavy_library() -> None:
    code = (
        "import sys; from omnipilot.cli import app; app.run(['--help']);"
        "print([m for m in sys.modules if m.startswith(tuple(sys.argv[1:]))], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *REFUSED_AT_IMPORT, "omnipilot.cli.advise"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["advize"], "advise"),
        (["--verzion"], "--version"),
        (["advise", "--concurrency", "many"], "many"),
        (["advise", "--concurrency", "-4", "--context", "10", "--model", "m"], "-4"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("omnipilot: error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (AmbiguousNameError("a100", ["a100-40", "a100-80"]), 2, "a100-40, a100-80"),
        (BundleError("no bundle in x"), 1, "no bundle in x"),
        (FileNotFoundError(2, "No such file", "rows.csv"), 1, "rows.csv: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory"),
        (ModuleNotFoundError("No module named 'scipy'", name="scipy"), 1, "uv sync --extra fit"),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1, "internal error"),
        (ZeroDivisionError("x\ny"), 1, "internal error"),
    ],
)
def test_an_exception_becomes_one_line_and_its_exit_code(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.delenv("OMNIPILOT_DEBUG", raising=False)
    monkeypatch.setattr(app.LazyGroup, "get_command", lambda *_: click.Command("x", callback=fail))
    assert app.run(["advise"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1  # click ends the line of a ^C first


def test_a_bug_shows_its_traceback_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setenv("OMNIPILOT_DEBUG", "1")
    monkeypatch.setattr(app.LazyGroup, "get_command", lambda *_: click.Command("x", callback=fail))
    with pytest.raises(ZeroDivisionError):
        app.run(["advise"])


def test_python_dash_m_answers_like_the_command() -> None:
    done = run_process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("omnipilot ")


def test_a_reader_that_leaves_early_causes_no_noise() -> None:
    command = f"{sys.executable} -m omnipilot data stats | head -n 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""

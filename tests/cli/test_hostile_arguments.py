"""Junk on the command line: one line and an exit code, whatever it is."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.cli import app

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6")) * 25
# These would serve, fit or write for long where by chance everything is right.
LONG = frozenset({"serve", "mcp", "demo", "fit", "evaluate", "report", "backtest", "bench"})
JUNK = (
    "", " ", "-", "--", "0", "-1", "nan", "inf", "1e999", "9" * 400, "1_0", "0x10", "\u0661",
    "../../../etc/passwd", "/", "/dev/null", "/dev/full", "~", "a/../../b", "x" * 5000, "=", "a=b",
    "slo=", "=1", "slo=nan", "a,b,,", ",", "%s%n", "{0}", "$(id)", "`id`", "; id", "\x1b[2J", "\r",
    "\n", "a\nb", "\u202e", "\udcff", "\U0001f600", "[" * 2000, "{" * 2000, "null", "true",
    "'; DROP TABLE runs; --", "=HYPERLINK(1)", "@", "Qwen/Qwen2.5-7B-Instruct", "h100-80", "fp8",
    "vllm", "json", "table", "current", "2026-01-01", "now", "http://[", "http://127.0.0.1:1/",
)  # fmt: skip
text = st.one_of(
    st.sampled_from(JUNK),
    st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=30),
)


@cache
def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command by the words that call it."""
    found: dict[tuple[str, ...], click.Command] = {}

    def walk(words: tuple[str, ...], command: click.Command) -> None:
        found[words] = command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                walk((*words, name), below)

    walk((), app.cli)
    return found


pair = st.tuples(st.booleans(), st.booleans())


@st.composite
def argv(draw: st.DrawFn) -> list[str]:
    words = draw(st.sampled_from(sorted(commands())))
    options = [
        str(option)
        for parameter in commands()[words].params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    ]
    args = list(words)
    for _ in range(draw(st.integers(0, 5))):
        drawn = [draw(st.sampled_from([*options, ""])), draw(text)]
        args += [word for word, is_there in zip(drawn, draw(pair), strict=True) if is_there]
    if words and words[0] in LONG and not {"--help", "-h"} & set(args):
        args.append("--no-such-option")
    return args


def run(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = app.run(args)
    except SystemExit as error:  # --help and --version leave by it nowhere
        raise AssertionError(args) from error
    out, err = capsys.readouterr()
    return code, out, err


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(args=argv())
def test_junk_gives_one_line_and_an_exit_code_and_never_a_traceback(
    args: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMNIPILOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OMNIPILOT_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    code, out, err = run(args, capsys)
    assert code in {0, 1, 2, 3}, (args, err)
    assert "internal error" not in err, (args, err)
    assert "Traceback" not in err, args
    assert "\x1b" not in out + err, args
    if code == 2:
        assert out == "", args
        lines = [line for line in err.splitlines() if line.startswith("omnipilot: error: ")]
        assert len(lines) == 1, (args, err)
        assert err.endswith(f"{lines[0]}\n"), (args, err)


@pytest.mark.parametrize("words", ["../../etc", "..", "a/b", "current/../..", "/etc", "."])
def test_a_version_is_a_name_of_the_folder_and_never_a_path(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bundles" / "0123456789ab").mkdir(parents=True)
    for command in ("show", "promote"):
        code, out, err = run(["models", command, words, "--home", str(tmp_path)], capsys)
        assert code == 2, err
        assert out == ""
        assert err.count("\n") == 1

"""Foreign text in answers: no terminal obeys it, no spreadsheet computes it, no log is forged."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.cli import app
from omnipilot.cli.visible import cell, escaped, visible
from omnipilot.domain import InferenceRun
from omnipilot.store import Store
from omnipilot.web.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

FORMULA = '=HYPERLINK("http://evil","x")'
COLOURED = "\x1b]0;owned\x07\x1b[2Jmodel\x9b31m\u202e"
CONTROLS = {chr(n) for n in (*range(9), *range(11, 32), *range(127, 160), 0x202E)}


def is_clean(text: str) -> bool:
    return not CONTROLS & set(text)


@given(st.text())
def test_no_control_character_is_sent(text: str) -> None:
    assert is_clean(visible(text))
    assert is_clean(cell(text))


@given(
    st.recursive(st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))
)
def test_an_escaped_document_means_the_same(value: object) -> None:
    text = escaped(json.dumps(value, ensure_ascii=False))
    assert is_clean(text)
    assert json.loads(text) == value


@given(st.text(min_size=1))
def test_no_cell_begins_like_a_formula_unless_it_is_a_number(text: str) -> None:
    shown = cell(text)
    if shown[0] in "=+-@\t\r":
        float(shown)
    if text.isalnum():
        assert shown == text


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_numbers(value: float) -> None:
    assert cell(str(value)) == str(value)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A site whose rows came from somebody who means harm."""
    run = InferenceRun(
        source=FORMULA, model=COLOURED, engine="vllm", gpu="@H100", n_gpus=1, precision="fp8",
        mode="online", status="ok", labels={"ttft_p50_s": 0.1}, concurrency=8.0,
    )  # fmt: skip
    Store.open(tmp_path).append([run], now_s=0.0)
    return tmp_path


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize("command", [("data", "list"), ("data", "stats")])
def test_hostile_rows_are_shown_and_not_obeyed(
    command: tuple[str, str], form: str, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*command, "--home", str(hostile), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert "model" in out
    assert is_clean(out.replace("\n", ""))
    assert is_clean(err.replace("\n", ""))
    if form == "csv":
        cells = [text for row in csv.reader(io.StringIO(out)) for text in row]
        assert not [text for text in cells if text.startswith(("=", "+", "-", "@"))]


def test_an_error_with_foreign_text_is_one_clean_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "\x1b[2J\rforged\nline"
    file.write_bytes(b"\xff" * 10)
    assert app.run(["data", "import", str(file), "--home", str(tmp_path / "home")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert is_clean(err.rstrip("\n"))


@given(
    words=st.text(),
    facts=st.dictionaries(st.text(min_size=1).filter(lambda k: k != "event"), st.text()),
)
def test_no_text_forges_a_line_of_the_service_s_log(words: str, facts: dict[str, str]) -> None:
    stream = io.StringIO()
    Journal(stream, clock=lambda: 0.0).write("request", said=words, facts=facts)
    (line,) = stream.getvalue().split("\n")[:-1]
    assert json.loads(line)["said"] == words

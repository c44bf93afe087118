"""The ledger: append-only, and every way of tampering is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.domain.errors import StateError
from omnipilot.learn.ledger import LEDGER_NAME, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_S = 1_700_000_000.0


def written(folder: Path, n: int = 3) -> Ledger:
    ledger = Ledger(folder)
    with ledger.locked():
        for i in range(n):
            ledger.append("fit", f"v{i}", {"rows": i}, at_s=NOW_S + i)
    return ledger


def lines(ledger: Ledger) -> list[bytes]:
    return ledger.path.read_bytes().splitlines(keepends=True)


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    found = written(tmp_path).entries()
    assert [(e.n, e.event, e.version, e.at_s, e.facts) for e in found] == [
        (1, "fit", "v0", NOW_S, {"rows": 0}),
        (2, "fit", "v1", NOW_S + 1, {"rows": 1}),
        (3, "fit", "v2", NOW_S + 2, {"rows": 2}),
    ]


def test_a_site_without_a_ledger_has_no_entries(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none").entries() == []


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_edited_line_is_refused_by_its_number(tmp_path: Path, at: int) -> None:
    ledger = written(tmp_path)
    found = lines(ledger)
    body = json.loads(found[at])
    body["facts"]["rows"] = 99
    found[at] = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    ledger.path.write_bytes(b"".join(found))
    with pytest.raises(StateError, match=f"line {at + 1}: it was changed"):
        ledger.entries()


def test_a_line_cut_out_of_the_middle_is_refused(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    first, _, last = lines(ledger)
    ledger.path.write_bytes(first + last)
    with pytest.raises(StateError, match="line 2"):
        ledger.entries()


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_last_lines_that_were_cut_off_are_missed(tmp_path: Path, kept: int) -> None:
    ledger = written(tmp_path)
    ledger.path.write_bytes(b"".join(lines(ledger)[:kept]))
    with pytest.raises(StateError, match=f"holds {kept} lines where 3 were written"):
        ledger.entries()


def test_a_last_line_cut_short_after_it_was_vouched_for_is_missed(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-20])
    with pytest.raises(StateError, match="2 lines where 3"):
        ledger.entries()


def test_a_line_that_a_crash_cut_short_is_dropped_by_the_next_writer(tmp_path: Path) -> None:
    ledger = written(tmp_path, 2)
    with ledger.path.open("ab") as stream:
        stream.write(b'{"n":3,"event":"fi')
    assert len(ledger.entries()) == 2
    with ledger.locked():
        ledger.append("promote", "v1", {}, at_s=NOW_S)
    assert [e.event for e in ledger.entries()] == ["fit", "fit", "promote"]
    assert len(lines(ledger)) == 3


def test_a_crash_between_the_line_and_the_head_loses_nothing(tmp_path: Path) -> None:
    ledger = written(tmp_path, 2)
    head = (tmp_path / "ledger.head").read_text(encoding="ascii")
    with ledger.locked():
        ledger.append("promote", "v1", {}, at_s=NOW_S)
    (tmp_path / "ledger.head").write_text(head, encoding="ascii")
    assert len(ledger.entries()) == 3


def test_lines_that_another_process_writes_while_it_is_read_are_no_tampering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = written(tmp_path)
    for name in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, name, _then_append(getattr(Path, name), ledger, monkeypatch))
    assert len(ledger.entries()) in {3, 4}
    assert len(ledger.entries()) == 4


def _then_append(
    read: Callable[..., Any], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Another process writes a line, once, right after a file was read."""

    def instead(path: Path, *args: Any, **options: Any) -> Any:
        found = read(path, *args, **options)
        monkeypatch.undo()
        with ledger.locked():
            ledger.append("promote", "v2", {}, at_s=NOW_S)
        return found

    return instead


def test_another_ledger_s_lines_do_not_pass_for_this_one_s(tmp_path: Path) -> None:
    ours, theirs = written(tmp_path / "a", 2), written(tmp_path / "b", 3)
    ours.path.write_bytes(b"".join(lines(theirs)[1:]))
    with pytest.raises(StateError):
        ours.entries()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = written(tmp_path_factory.mktemp("ledger"))
    content = bytearray(ledger.path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    ledger.path.write_bytes(bytes(content))
    with pytest.raises(StateError):
        ledger.entries()


def test_a_damaged_head_is_told(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    (tmp_path / "ledger.head").write_text("three", encoding="ascii")
    with pytest.raises(StateError, match=r"ledger\.head"):
        ledger.entries()


def test_a_folder_that_cannot_be_written_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written"), Ledger(tmp_path / "file").locked():
        pass


def test_the_file_is_the_owner_s_alone(tmp_path: Path) -> None:
    written(tmp_path)
    assert (tmp_path / LEDGER_NAME).stat().st_mode & 0o077 == 0

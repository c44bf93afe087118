"""Reading records of untrusted files."""

from __future__ import annotations

import gzip
import os
import resource
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect.lines import open_lines
from omnipilot.collect.records import Limits, Record, printable, read_records
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits()


def read(path: Path, data: bytes, limits: Limits = LIMITS) -> list[Record | Rejection]:
    path.write_bytes(data)
    return list(read_records(path, limits))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input.csv"


def test_records_carry_the_line_they_start_on(file: Path) -> None:
    assert read(file, b"a,b\n1,2\n\n3,4\n") == [
        Record(1, ["a", "b"]), Record(2, ["1", "2"]), Record(4, ["3", "4"]),
    ]  # fmt: skip


def test_byte_order_mark_and_dos_line_ends_are_no_part_of_a_field(file: Path) -> None:
    assert read(file, b"\xef\xbb\xbfa,b\r\n1,2\r\n") == [
        Record(1, ["a", "b"]),
        Record(2, ["1", "2"]),
    ]


def test_a_last_line_without_newline_is_a_record(file: Path) -> None:
    assert read(file, b"a,b\n1,2")[-1] == Record(2, ["1", "2"])


def test_gzip_is_told_by_its_bytes_not_by_its_name(file: Path) -> None:
    assert read(file, gzip.compress(b"a,b\n1,2\n"))[1] == Record(2, ["1", "2"])


def test_several_gzip_members_read_as_one_file(file: Path) -> None:
    data = gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n")
    assert read(file, data)[2] == Record(3, ["3", "4"])


def test_quoted_fields_hold_commas_quotes_and_line_ends(file: Path) -> None:
    rows = read(file, b'a,b\n"x, ""y""","two\r\nlines"\n5,6\n')
    assert rows[1:] == [Record(2, ['x, "y"', "two\r\nlines"]), Record(4, ["5", "6"])]


def test_a_quote_inside_a_plain_field_is_text(file: Path) -> None:
    assert read(file, b'a,b\n5" disk,1\n')[1] == Record(2, ['5" disk', "1"])


def test_an_unclosed_quote_costs_only_its_own_line(file: Path) -> None:
    lines = b'a,b\n"open,2\n' + b"".join(b"%d,0\n" % i for i in range(300))
    rows = read(file, lines)
    assert rows[1] == Rejection(2, "a quote is opened and never closed", "unclosed quote")
    assert rows[2:] == [Record(i + 3, [str(i), "0"]) for i in range(300)]


def test_an_unclosed_quote_at_the_end_of_a_cut_file_is_a_rejection(file: Path) -> None:
    assert isinstance(read(file, b'a,b\n1,2\n3,"cut he')[-1], Rejection)


def test_a_line_of_ten_megabytes_is_refused_and_the_next_is_read(file: Path) -> None:
    rows = read(file, b"a,b\n" + b"x" * 10_000_000 + b"\n1,2\n")
    assert isinstance(rows[1], Rejection)
    assert (rows[1].line, rows[1].code) == (2, "line too long")
    assert rows[2] == Record(3, ["1", "2"])


def test_a_long_line_is_never_held_in_memory(file: Path) -> None:
    with file.open("wb") as out:
        out.write(b"a,b\n")
        for _ in range(100):
            out.write(b"x" * 1_000_000)
        out.write(b"\n1,2\n")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = list(read_records(file, LIMITS))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50_000
    assert rows[2] == Record(3, ["1", "2"])


def test_a_field_above_the_csv_modules_limit_is_a_rejection(file: Path) -> None:
    rows = read(file, b"a,b\n" + b"x" * 200_000 + b",1\n1,2\n")
    assert isinstance(rows[1], Rejection)
    assert rows[2] == Record(3, ["1", "2"])


@pytest.mark.parametrize(
    ("line", "code"),
    [(b"\xe9t\xe9,1", "not UTF-8"), (b"a\0b,1", "NUL byte"), (b"a\rb,1", "not CSV")],
)
def test_a_damaged_line_is_rejected_and_its_neighbours_kept(
    file: Path, line: bytes, code: str
) -> None:
    rows = read(file, b"a,b\n1,2\n" + line + b"\n3,4\n")
    assert isinstance(rows[2], Rejection)
    assert (rows[2].line, rows[2].code) == (3, code)
    assert rows[3] == Record(4, ["3", "4"])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"PK\x03\x04rest", "Excel"),
        (b"PAR1rest", "Parquet"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(gzip.compress(b"a,b\n", mtime=0), mtime=0), "twice"),
    ],
)
def test_a_file_that_is_no_csv_is_named_for_what_it_is(file: Path, data: bytes, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        read(file, data)


@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_a_damaged_gzip_file_is_refused(file: Path, damage: str) -> None:
    whole = gzip.compress(os.urandom(5000).hex().encode() + b"\n", compresslevel=9)
    data = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:-8] + bytes([whole[-8] ^ 255]) + whole[-7:],
        "tail": whole + b"garbage",
    }[damage]
    with pytest.raises(BadInputError, match="damaged or cut gzip"):
        read(file, data)


def test_a_gzip_bomb_is_refused_by_its_ratio(file: Path) -> None:
    limits = Limits(expansion_floor_bytes=2**14)
    with pytest.raises(BadInputError, match="gzip bomb"):
        read(file, gzip.compress(b"0,0\n" * 2**16), limits)


def test_the_ratio_counts_the_bytes_that_were_unpacked(file: Path) -> None:
    # Random bytes after it do not hide that the beginning expands.
    data = gzip.compress(b"0,0\n" * 2**18, 9) + gzip.compress(os.urandom(2**20).hex().encode(), 1)
    with pytest.raises(BadInputError, match="gzip bomb"):
        read(file, data)


@given(
    parts=st.lists(st.text("abc,1\n", min_size=1, max_size=300_000 // 100), min_size=1, max_size=4),
    padding=st.integers(0, 600),
    level=st.integers(0, 9),
)
def test_members_one_after_another_are_one_text(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], padding: int, level: int
) -> None:
    path = tmp_path_factory.mktemp("members") / "f"
    packed = (gzip.compress(part.encode(), level) for part in parts)
    path.write_bytes(b"".join(packed) + b"\0" * padding)
    with open_lines(path, LIMITS, "a text") as lines:
        assert lines.read_all() == "".join(parts).encode()


def test_text_above_the_size_limit_is_refused(file: Path) -> None:
    with pytest.raises(BadInputError, match="more than"):
        read(file, b"0,0\n" * 1000, Limits(file_bytes=2000))


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadInputError, match="not a regular file"):
            list(read_records(path, LIMITS))
    with pytest.raises(BadInputError, match="No such file"):
        list(read_records(tmp_path / "missing", LIMITS))


@given(data=st.binary(max_size=2000), packed=st.booleans())
def test_any_bytes_give_records_rejections_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f"
    said, lines = "", []
    try:
        items = read(path, gzip.compress(data) if packed else data, Limits(line_bytes=200))
        lines = [item.line for item in items]
    except BadInputError as error:
        said = str(error)
    assert "\n" not in said
    assert lines == sorted(set(lines))


@given(
    rows=st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r")), min_size=2),
        min_size=1,
        max_size=8,
    )
)
def test_what_a_csv_writer_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    quoted = (",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows)
    path = tmp_path_factory.mktemp("fuzz") / "f"
    items = read(path, "".join(line + "\n" for line in quoted).encode())
    assert [item.fields for item in items if isinstance(item, Record)] == rows


@given(st.text())
def test_foreign_text_in_messages_is_short_and_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 41

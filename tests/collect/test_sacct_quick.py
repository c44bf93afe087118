"""The quick way of reading accounting says what the long way says, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacct_builders import KEY, RECORD, TRES

from omnipilot.collect.sacct import collect_sacct
from omnipilot.collect.sacct_quick import QuickReader
from omnipilot.collect.sacct_text import COLUMNS
from omnipilot.domain import ClusterJob

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BLOB = (
    "JS1:H4sIAAAAAAACA1WOzQ6DIBCE32XPptkFWcCXMaaSlkTFVDy0hncv/rQJt5nsfLOzwRR6t0CzwZMQJ9pVDLEb2t"
    "GN4fWGxihjrayVFRWsi+v/ByXZaLQksLqQ6EcHjaBbXcF9XnNtFo95bcvGDXCvVQINWmtyhgqfTqh4djCahVTMVuHJ"
    "aCakWpHW/GOiH/yniz5MF8PyJo4wU0qpXCoZ8eDyUpG+1s4H+gwBAAA="
)
PLAIN = {**RECORD, "TimelimitRaw": "1440", "Restarts": "0"}
TIMES = [
    "1795957800",
    "1795957870",
    "1795961470",
    "0000000000",
    "4102444800",
    "None",
    "Unknown",
    "",
]
# Values that the quick way takes, refuses, or must leave to the long way.
VALUES: dict[str, list[str]] = {
    "JobID": ["100", "100_4", "100_[1-3]", "100+0", "100.batch", "101", "0", "٣", "0100"],
    "JobIDRaw": ["100", "101", "", "x", "0", "0100"],
    "Cluster": ["lab", "", "-x", "läb"],
    "User": ["alice", "", "al\ufffdice", "ünïcode"],
    "Account": ["acct", "", "a\ufffd"],
    "Partition": ["gpu", "gpu_a,gpu_b", "", "g p u"],
    "State": ["COMPLETED", "CANCELLED by 1002", "CANCELLED by 0", "RUNNING", "REQUEUED", "ODD", ""],
    "ExitCode": ["0:0", "1:0", "0:125", "", "x", "1:2:3"],
    "Submit": TIMES,
    "Eligible": TIMES,
    "Start": TIMES,
    "End": TIMES,
    "ElapsedRaw": ["3600", "3601", "3602", "0", "", "-1", "99999999999"],
    "TimelimitRaw": ["1440", "", "UNLIMITED", "Partition_Limit", "99999999"],
    "NNodes": ["1", "", "x"],
    "NCPUS": ["4", "", "99999999999"],
    "AllocTRES": [TRES, "", "cpu=1", "gres/gpu:a100=1", "gres/gpu=2,gres/gpu=2", "cut,o"],
    "ReqTRES": [TRES, "", "gres/gpu=2", "gres/gpu:h100=2", "gres/gpu:a100=1,gres/gpu:a100=1"],
    "AdminComment": ["", BLOB, BLOB[:-9], "JS1:Short", "js1:none", "note"],
    "JobName": ["train", "vLLM-x", "V llm", "", "наука"],
    "Restarts": ["0", "3", "", "x"],
}


def both_ways(path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> tuple[object, object]:
    path.write_text(content, encoding="utf-8")
    quick = list(collect_sacct(path, key=KEY))
    with monkeypatch.context() as patch:
        patch.setattr(QuickReader, "reads", staticmethod(lambda *_: False))
        return quick, list(collect_sacct(path, key=KEY))


@given(
    changes=st.lists(
        st.dictionaries(
            st.sampled_from(sorted(VALUES)), st.integers(0, 100), min_size=0, max_size=3
        ),
        min_size=1,
        max_size=12,
    ),
    with_restarts=st.booleans(),
    shuffled=st.randoms(use_true_random=False),
)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_both_ways_agree_on_any_records(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[dict[str, int]],
    with_restarts: bool,
    shuffled: object,
) -> None:
    columns = [*COLUMNS, *(["Restarts"] if with_restarts else [])]
    shuffled.shuffle(columns)  # type: ignore[attr-defined]
    records = [
        {**PLAIN, **{c: VALUES[c][n % len(VALUES[c])] for c, n in change.items()}}
        for change in changes
    ]
    text = (
        "\n".join(["|".join(columns), *("|".join(r[c] for c in columns) for r in records)]) + "\n"
    )
    quick, long = both_ways(tmp_path / "a", text, monkeypatch)
    assert quick == long


def test_records_as_the_harvest_asks_for_them_go_the_quick_way() -> None:
    reader = QuickReader([name.lower() for name in COLUMNS], "|", KEY)
    line = "|".join(PLAIN[name] for name in COLUMNS)
    array_task = line.replace("100|100|", "100_7|107|", 1)
    assert all(isinstance(row, ClusterJob) for row in reader.read([line, array_task]))
    assert reader.read([line.replace("COMPLETED", "RUNNING"), "", "x|y"]) == [None, None, None]


def test_a_column_that_must_be_compared_bars_the_quick_way() -> None:
    names = [name.lower() for name in COLUMNS]
    assert QuickReader.reads(names, "|")
    assert not QuickReader.reads([*names, "elapsed"], "|")
    assert not QuickReader.reads(names[1:], "|")
    assert not QuickReader.reads(names, ",,")

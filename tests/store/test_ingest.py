"""Files taken into the store."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect import collect_csv
from omnipilot.domain import BadInputError, InferenceRun
from omnipilot.store import ImportReport, Store, import_file, import_items, stats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rejection import Rejection

COLUMNS = (
    "source,model,engine,engine_version,gpu,n_gpus,precision,isl,osl,concurrency,status,"
    "out_tok_s,ttft_p50_ms"
)


def line(concurrency: object, out_tok_s: object = 1000, status: str = "ok") -> str:
    return f"site,m,vllm,0.11.1,H100,1,fp8,1024,128,{concurrency},{status},{out_tok_s},250"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([COLUMNS, *lines]) + "\n")
    return path


def take(store: Store, path: Path, now_s: float = 1.0) -> ImportReport:
    return import_file(store, path, collect_csv, now_s=now_s)


def test_good_rows_are_kept_and_bad_ones_told_by_line_and_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "r.csv", line(1), line("nan"), line(2), line(1), line(3, -5))
    report = take(Store.open(tmp_path / "home"), path)
    assert (report.accepted, report.duplicate, report.rejected, report.total) == (2, 1, 2, 5)
    assert [(r.line, r.code) for r in report.rejections] == [(3, "not finite"), (6, "out of range")]
    assert report.by_reason == {"not finite": 1, "out of range": 1}


def test_a_second_import_adds_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "home")
    path = write(tmp_path / "r.csv", line(1), line(2))
    take(store, path)
    before = store.path.read_bytes()
    assert take(Store.open(store.home), path, now_s=9.0) == ImportReport(0, 2, 0, (), {})
    assert store.path.read_bytes() == before


def test_only_the_first_twenty_rejections_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "r.csv", *[line("x")] * 50)
    report = take(Store.open(tmp_path / "home"), path)
    assert len(report.rejections) == 20
    assert report.by_reason == {"not a number": 50}
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("damage", ["columns", "binary", "cut", "empty", "twice"])
def test_a_file_that_is_none_leaves_the_store_as_it_was(tmp_path: Path, damage: str) -> None:
    store = Store.open(tmp_path / "home")
    take(store, write(tmp_path / "good.csv", line(1)))
    before = {path.name: path.read_bytes() for path in store.home.iterdir()}
    text = "\n".join([COLUMNS, *(line(i, i) for i in range(1, 20_000))]).encode()
    bad = tmp_path / "bad.csv"
    bad.write_bytes(
        {
            "columns": b"a,b\n1,2\n",
            "binary": bytes(range(256)) * 100,
            "cut": gzip.compress(text)[:-40],
            "empty": b"",
            "twice": COLUMNS.encode() + b",isl\n",
        }[damage]
    )
    with pytest.raises(BadInputError):
        take(store, bad)
    assert {path.name: path.read_bytes() for path in store.home.iterdir()} == before


def test_a_collector_that_breaks_half_way_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    def broken() -> Iterator[InferenceRun | Rejection]:
        yield from collect_csv(write(tmp_path / "r.csv", line(1)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_items(Store.open(tmp_path / "home"), broken(), now_s=0.0)
    assert not (tmp_path / "home").exists()


def test_progress_is_told_in_thousands(tmp_path: Path) -> None:
    path = write(tmp_path / "r.csv", *(line(i + 1) for i in range(2500)))
    seen: list[int] = []
    store = Store.open(tmp_path / "home")
    import_file(store, path, collect_csv, now_s=0.0, on_progress=seen.append)
    assert seen == [1000, 2000]


def test_stats_count_rows_labels_times_and_what_was_passed_over(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "home")
    take(store, write(tmp_path / "a.csv", line(1), line(2)), now_s=10.0)
    take(store, write(tmp_path / "b.csv", line(3, 0, "oom")), now_s=20.0)
    foreign = json.loads(store.path.read_bytes().splitlines()[0]) | {"kind": "gpu_probe"}
    with store.path.open("a") as out:
        out.write("garbage\n" + json.dumps(foreign) + "\n" + '{"torn')
    told = stats(Store.open(store.home))
    assert told.rows == 3
    assert told.by_kind == {"inference_run": 3}
    assert told.by_status == {"ok": 2, "oom": 1}
    assert (told.by_gpu, told.by_source, told.by_engine, told.by_model) == (
        {"H100": 3}, {"site": 3}, {"vllm": 3}, {"m": 3},
    )  # fmt: skip
    assert told.labels == {"ttft_p50_s": 3, "output_tokens_per_s": 2}
    assert (told.first_ingested_at_s, told.last_ingested_at_s) == (10.0, 20.0)
    assert told.skipped == {"not a row": 1}
    assert told.unknown_kinds == {"gpu_probe": 1}
    assert told.torn_files == 1
    assert told.size_bytes == store.path.stat().st_size


def test_an_empty_store_has_empty_stats(tmp_path: Path) -> None:
    told = stats(Store.open(tmp_path / "home"))
    assert (told.rows, told.size_bytes, told.first_ingested_at_s) == (0, 0, None)


@given(data=st.binary(max_size=500), header=st.booleans())
def test_any_file_is_imported_or_refused_and_every_record_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, header: bool
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    good = "\n".join([COLUMNS, line(1), ""]).encode() if header else b""
    (folder / "f").write_bytes(good + data)
    store = Store.open(folder / "home")
    try:
        report = take(store, folder / "f")
    except BadInputError:
        assert not header
        assert not store.home.exists()
        return
    assert report.accepted >= 1
    assert stats(store).rows == report.accepted
    assert sum(report.by_reason.values()) == report.rejected


def test_the_combined_public_table_is_taken_in_once(tmp_path: Path, shared_dir: Path) -> None:
    store = Store.open(tmp_path / "home")
    path = shared_dir / "data/combined/serving_rows.csv.gz"
    report = take(store, path)
    # 29 of its 11,569 rows repeat another row in every column.
    assert (report.accepted, report.duplicate, report.rejected) == (11_540, 29, 0)
    before = store.path.read_bytes()
    again = take(Store.open(store.home), path)
    assert (again.accepted, again.duplicate) == (0, 11_569)
    assert store.path.read_bytes() == before

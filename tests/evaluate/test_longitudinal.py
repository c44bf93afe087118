"""The replay by months: dates, merged months, falsified rows, and the keys of its document."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.catalog import Catalog
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.domain.errors import BadInputError
from omnipilot.evaluate.longitudinal import (
    MONTH_ROWS,
    falsified,
    merge_months,
    read_timeline,
    replay,
)
from omnipilot.learn.dataset import as_meant

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.evaluate.longitudinal import Timeline

CATALOG = Catalog.load()
HEADER = (
    "source", "model", "engine", "engine_version", "gpu", "gpu_mem_gb", "n_gpus", "precision",
    "isl", "osl", "concurrency", "status", "out_tok_s", "measured", "notes",
)  # fmt: skip
MONTHS = ("2026-01-05", "2026-02-07", "2026-03-11")


def table(folder: Path, months: tuple[str, ...] = MONTHS, per_month: int = 54) -> Path:
    """A source whose rates grow with load and GPU: round numbers, one block a month."""
    path = folder / "ours" / "normalised.csv"
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for m, month in enumerate(months):
            for i in range(per_month):
                gpu, memory, speed = (("H100", 80, 2.0), ("A100", 80, 1.2), ("L40S", 48, 0.6))[
                    i % 3
                ]
                load = 2 ** (i // 3 % 6)
                rate = 45.0 * speed * load**0.9 * float(np.exp(0.04 * rng.standard_normal()))
                writer.writerow(
                    ("ours", "meta-llama/Llama-3.1-8B-Instruct", "vllm", "0.11.2", gpu, memory, 1,
                     "bf16", 512 * (1 + i // 18 % 3), 128 + m, load, "ok", f"{rate:.2f}", month, "")
                )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    folder = table(tmp_path_factory.mktemp("data"), ("", *MONTHS))
    return read_timeline(folder, "ours", CATALOG)


def test_undated_rows_are_left_out_and_counted(timeline: Timeline) -> None:
    assert timeline.undated == 54
    assert timeline.names == ("2026-01", "2026-02", "2026-03")
    assert np.bincount(timeline.period).tolist() == [54, 54, 54]


def test_short_months_join_the_next_and_a_short_last_one_the_one_before() -> None:
    months = np.repeat(["2026-01", "2026-02", "2026-03", "2026-04"], [20, 40, 60, 10])
    period, names = merge_months(months)
    assert names == ("2026-01 to 2026-02", "2026-03 to 2026-04")
    assert np.bincount(period).tolist() == [60, 70]


def test_a_source_without_dates_or_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such table"):
        read_timeline(tmp_path, "ours", CATALOG)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "normalised.csv").write_text("source,model\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="no column 'measured'"):
        read_timeline(tmp_path, "ours", CATALOG)


def test_rows_are_put_in_the_order_of_their_dates(tmp_path: Path) -> None:
    folder = table(tmp_path, tuple(reversed(MONTHS)))
    found = read_timeline(folder, "ours", CATALOG)
    assert (np.diff(found.period) >= 0).all()
    assert found.dataset.runs[0].output_tokens == 128.0 + 2


def test_the_real_table_is_read_with_its_corrected_gpu_counts(shared_dir: Path) -> None:
    found = read_timeline(shared_dir / "data", "inferencex_silicon", CATALOG)
    assert len(found.names) >= 6
    assert np.bincount(found.period).min() >= MONTH_ROWS
    assert (np.diff(found.period) >= 0).all()
    assert all(as_meant(run) == run for run in found.dataset.runs)


def test_falsified_months_change_that_month_alone(timeline: Timeline) -> None:
    data, now = timeline.dataset.data, timeline.period == 1
    name, true = "output_tokens_per_s", data.frame.category("gpu_kind")
    told = falsified(timeline.told(CATALOG), now, CATALOG)
    made = {way: one.data for way, one in told.items()}
    assert list(made) == ["scaled", "swapped", "both"]
    for way in ("scaled", "both"):
        step = made[way].labels[name] - data.labels[name]
        assert step[now] == pytest.approx(np.log(3.0))
        assert np.count_nonzero(step[~now]) == 0
    for way in ("swapped", "both"):
        kinds = made[way].frame.category("gpu_kind")
        assert (kinds[now] != true[now]).all()
        assert (kinds[~now] == true[~now]).all()
    assert (made["scaled"].frame.category("gpu_kind") == true).all()


def test_the_document_has_its_keys_and_learning_helps(timeline: Timeline) -> None:
    base = load_bundle(base_model_path())[0]
    found = replay(timeline, base, CATALOG)
    assert set(found) >= {
        "mape_gated", "mape_never", "mape_always", "coverage_gated", "promotions", "rejections",
        "alarms", "per_period",
    }  # fmt: skip
    assert found["mape_gated"] < found["mape_never"]
    assert found["mape_gated"] <= found["mape_always"] + 0.005
    assert found["promotions"] + found["rejections"] == 3
    assert found["rows"] == 162
    first = found["per_period"][0]
    # Nothing is learned before the first month: all three are the base model.
    assert first["mape_gated"] == first["mape_always"] == pytest.approx(first["mape_never"])
    assert found["falsified_months"] == 9
    for period in found["per_period"]:
        assert {c.name for c in period["criteria"]} >= {"mape", "rows", "coverage"}
        assert set(period["falsified"]) == {"scaled", "swapped", "both"}

"""Cells, labels and freshness."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect import collect_csv
from omnipilot.domain import TARGET_NAMES, InferenceRun
from omnipilot.domain.rejection import Rejection
from omnipilot.store import (
    Store,
    cell_key,
    cell_of,
    freshness_weights,
    is_usable,
    label_matrix,
    load_runs,
)

if TYPE_CHECKING:
    from pathlib import Path


def run(status: str = "ok", **labels: float) -> InferenceRun:
    return InferenceRun(
        source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
        mode="online", status=status, labels=labels,
    )  # fmt: skip


def test_runs_load_from_a_store_or_from_a_collector(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.append([run(ttft_p50_s=1.0)], now_s=0.0)
    assert load_runs(store) == [run(ttft_p50_s=1.0)]
    assert load_runs([Rejection(2, "x", "x"), run()]) == [run()]


def test_labels_of_failed_runs_are_left_out() -> None:
    table = label_matrix([run(ttft_p50_s=1.0), run("oom", ttft_p50_s=0.1), run("ok_some_oom")])
    assert table.shape == (3, len(TARGET_NAMES))
    assert table[0, TARGET_NAMES.index("ttft_p50_s")] == 1.0
    assert np.isfinite(table).sum() == 1
    assert label_matrix([]).shape == (0, len(TARGET_NAMES))


def test_designed_lengths_tell_cells_apart() -> None:
    keys = {
        cell_key("m", prompt, output, clients, mode)
        for prompt in (1024, 1025)
        for output in (128, 129)
        for clients in (0, 1, 64)
        for mode in ("static", "online")
    }
    assert len(keys) == 24


@given(output_a=st.floats(1, 5000), output_b=st.floats(1, 5000))
def test_measured_output_lengths_do_not_tell_cells_apart(output_a: float, output_b: float) -> None:
    a = cell_key("m", 0, output_a, 256, "saturated", workload="gpqa", source="mlenergy_v3")
    b = cell_key("m", 0, output_b, 256, "saturated", workload="gpqa", source="mlenergy_v3")
    assert a == b
    a = cell_key("m", 112.3, output_a, 8, "online", source="llm_pilot")
    assert a == cell_key("m", 121.9, output_b, 8, "online", source="llm_pilot")
    assert a != cell_key("m", 1121.9, output_b, 8, "online", source="llm_pilot")


@given(
    numbers=st.tuples(*[st.floats(0, 1e8)] * 3),
    workload=st.text(max_size=3),
)
def test_every_run_has_a_cell(numbers: tuple[float, float, float], workload: str) -> None:
    assert cell_key("m", *numbers, "online", workload=workload).startswith("m|online|")


@given(ages=st.lists(st.floats(-1e6, 1e9), min_size=1), window_s=st.floats(1, 1e6))
def test_freshness_never_grows_with_age(ages: list[float], window_s: float) -> None:
    age_s = np.sort(np.asarray(ages))
    weights = freshness_weights(age_s, window_s)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (np.diff(weights) <= 0).all()
    assert (weights[age_s > 4 * window_s] == 0).all()
    assert (weights[age_s <= 0] == 1).all()


# Cells and cells with two or more arms, as the public data's own README counts them.
PUBLISHED_CELLS = [
    ("llm_pilot", None, 72, 64),
    ("llm_inference_bench", "vllm", 370, 246),
    ("inferencex_silicon", "vllm", 170, 103),
    ("inferencex_silicon", None, 485, 332),
    ("mlenergy_v3", None, 409, 259),
    ("mlenergy_v2", None, 215, 134),
]


@pytest.fixture(scope="module")
def public_runs(shared_dir: Path) -> list[InferenceRun]:
    return load_runs(collect_csv(shared_dir / "data/combined/serving_rows.csv.gz"))


@pytest.mark.parametrize(("source", "engine", "n_cells", "n_multi_arm"), PUBLISHED_CELLS)
def test_cells_of_the_public_data_are_those_it_publishes(
    public_runs: list[InferenceRun], source: str, engine: str | None, n_cells: int, n_multi_arm: int
) -> None:
    cells = defaultdict(set)
    for row in public_runs:
        small = source != "inferencex_silicon" or row.n_gpus <= 8
        if row.source == source and engine in {None, row.engine} and small and is_usable(row):
            base_id = re.sub(r"-FP8$", "", row.model)
            arm = (row.gpu, row.n_gpus, row.precision, row.engine)
            cells[cell_of(row, base_id)].add(arm)
    assert len(cells) == n_cells
    assert sum(len(arms) > 1 for arms in cells.values()) == n_multi_arm

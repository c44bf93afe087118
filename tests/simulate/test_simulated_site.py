"""A small simulated site, built twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulate_builders import catalog, deployment

from omnipilot.domain.errors import StateError
from omnipilot.domain.labels import GPU_LABELS, STARTUP_LABELS
from omnipilot.domain.rows import InferenceRun, StartupRun
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.domain.telemetry_rows import GpuWindow
from omnipilot.learn.dataset import build_dataset
from omnipilot.simulate import site
from omnipilot.simulate.measure import labels_of, measure
from omnipilot.simulate.plan import PlannedRun, plan_runs
from omnipilot.simulate.site import NOTE_NAME, build_site
from omnipilot.store import CLUSTER_LOG_NAME, Store, load_runs

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.catalog import Catalog

NOW_S = 1_760_000_000.0
N_RUNS = 40


def few_runs(facts: Catalog, rng: np.random.Generator) -> tuple[PlannedRun, ...]:
    """The quick ones among the first of a plan."""
    runs = [run for run in plan_runs(facts, rng) if run.cell.concurrency <= 64]
    return tuple(runs[:N_RUNS])


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sites of seed 1 and one of seed 2."""
    folder = tmp_path_factory.mktemp("sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "plan_runs", few_runs)
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            build_site(folder / name, seed, now_s=NOW_S, n_jobs=1500)
    return [folder / name for name in "abc"]


def test_the_same_seed_gives_the_same_site_byte_for_byte(homes: list[Path]) -> None:
    for log in ("history.jsonl", CLUSTER_LOG_NAME):
        one, again, other = ((home / log).read_bytes() for home in homes)
        assert one == again != other


def test_every_row_is_labelled_as_simulated_and_so_is_the_folder(homes: list[Path]) -> None:
    for log in ("history.jsonl", CLUSTER_LOG_NAME):
        assert {s.row.source for s in Store(homes[0], log_name=log).rows()} == {"simulated"}
    assert "Do not cite" in (homes[0] / NOTE_NAME).read_text(encoding="utf-8")


def test_a_run_that_served_has_all_labels_and_telemetry_and_a_failed_one_none(
    homes: list[Path],
) -> None:
    rows = [s.row for s in Store(homes[0]).rows()]
    runs = [r for r in rows if isinstance(r, InferenceRun)]
    served = [r for r in runs if r.status == "ok"]
    assert len(runs) == N_RUNS > len(served) > 0
    assert all(set(r.labels) == set(TARGET_NAMES) for r in served)
    assert all(not r.labels for r in runs if r.status != "ok")
    assert Counter(r.kind for r in rows)["gpu_window"] == len(served)
    assert {r.status for r in runs} >= {"ok", "oom", "unsupported"}


def test_fractions_are_fractions_and_totals_agree(homes: list[Path]) -> None:
    for run in load_runs(Store(homes[0])):
        if run.status != "ok":
            continue
        labels = run.labels
        assert all(0.0 < labels[n] <= 1.0 for n in TARGET_NAMES if n.endswith("_frac"))
        ratio = labels["aggregate_tokens_per_s"] / labels["output_tokens_per_s"]
        assert ratio == pytest.approx(1 + run.prompt_tokens / run.output_tokens, rel=0.06)
        assert labels["output_tokens_per_s"] == pytest.approx(
            labels["request_per_s"] * run.output_tokens, rel=0.06
        )


def test_idling_drags_the_whole_job_s_telemetry_below_that_of_serving(homes: list[Path]) -> None:
    windows = [s.row for s in Store(homes[0]).rows() if isinstance(s.row, GpuWindow)]
    known = {label.name for label in GPU_LABELS}
    for window in windows:
        assert set(window.labels) <= known
        assert window.start_s < window.serve_start_s < window.serve_end_s <= window.end_s + 1
        assert window.job_labels["sm_active_frac"] < window.labels["sm_active_frac"]
        assert window.job_labels["power_mean_w"] < window.labels["power_mean_w"]


def test_start_up_rows_carry_their_class(homes: list[Path]) -> None:
    starts = [s.row for s in Store(homes[0]).rows() if isinstance(s.row, StartupRun)]
    known = {label.name for label in STARTUP_LABELS}
    assert {bool(s.failure) for s in starts} == {True, False}
    assert all(bool(s.failure) == (s.status != "ok") and set(s.labels) <= known for s in starts)


def test_the_rows_make_a_training_set_with_nothing_screened_out(homes: list[Path]) -> None:
    runs = load_runs(Store(homes[0]))
    dataset = build_dataset(runs, catalog())
    assert dataset.excluded.total == dataset.excluded.not_ok
    assert len(dataset.runs) == sum(r.status == "ok" for r in runs)


def test_a_folder_with_rows_is_refused_and_stays_as_it_was(homes: list[Path]) -> None:
    before = (homes[0] / "history.jsonl").read_bytes()
    with pytest.raises(StateError, match="name an empty folder"):
        build_site(homes[0], 1, now_s=NOW_S)
    assert (homes[0] / "history.jsonl").read_bytes() == before


def test_replicates_differ_by_their_noise_and_not_by_more() -> None:
    deployed = deployment(max_model_len=1024)
    runs = [measure(deployed, 32, 768, 200, np.random.default_rng(seed)) for seed in range(12)]
    name = "aggregate_tokens_per_s"
    exact = {labels_of(r.trace, deployed, r.started)[name] for r in runs if r.trace is not None}
    noisy = [r.labels[name] for r in runs]
    assert len(exact) == 1
    assert 0.005 < np.log(noisy).std() < 0.025
    assert np.mean(noisy) == pytest.approx(exact.pop(), rel=0.012)

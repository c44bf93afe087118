"""Hyper-parameters by marginal likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from costmodel_builders import hyper, made, prior_of

from omnipilot.costmodel import hyperparameters
from omnipilot.costmodel.hyperparameters import (
    CLUSTER_ROWS,
    NOISE_SD,
    Hyperparameters,
    Scales,
    _whole_clusters,
    clusters,
    noise_groups,
    tune,
    tune_sources,
)
from omnipilot.costmodel.kernel import GLOBAL_TERMS, KERNEL_TERMS, SOURCE_TERMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

optimize = pytest.importorskip("scipy.optimize", reason="training needs scipy (extra 'fit')")


def tuned(
    residual: NDArray[np.float64], iterations: int = 12, rows: int = 90, subsets: int = 1
) -> Hyperparameters:
    frame = made().data.frame
    return tune(
        frame, prior_of(frame), residual, np.random.default_rng(0), rows=rows,
        subsets=subsets, iterations=iterations,
    )  # fmt: skip


def white(sd: float = 0.1) -> NDArray[np.float64]:
    return sd * np.random.default_rng(5).standard_normal(made().data.frame.n)


def test_the_gradient_agrees_with_finite_differences_and_the_value_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}
    original = optimize.minimize

    def spy(objective: Any, start: NDArray[np.float64], **options: Any) -> Any:
        seen.update(objective=objective, start=start)
        seen["result"] = original(objective, start, **options)
        return seen["result"]

    monkeypatch.setattr(optimize, "minimize", spy)
    frame = made().data.frame
    smooth = 0.2 * np.sin(np.log(frame["concurrency"])) + 0.1 * frame.codes["model"]
    tuned(smooth + white(0.03), iterations=6)
    objective, start = seen["objective"], seen["start"]
    at = start + 0.3 * np.random.default_rng(3).standard_normal(len(start))
    gradient = objective(at)[1]
    for j in range(len(start)):
        step = np.zeros_like(start)
        step[j] = 1e-4
        numeric = (objective(at + step)[0] - objective(at - step)[0]) / 2e-4
        assert gradient[j] == pytest.approx(numeric, rel=1e-3, abs=1e-3), j
    assert objective(seen["result"].x)[0] < objective(start)[0] - 1.0


def test_each_group_of_source_and_vendor_has_its_own_noise() -> None:
    frame = made().data.frame
    beta = frame.category("source") == "beta"
    found = tuned(np.where(beta, white(0.25), white(0.03)))
    noise = found.group_noise_sd
    assert set(noise) == {"alpha|nvidia", "beta|nvidia"}
    assert noise["beta|nvidia"] > 2 * noise["alpha|nvidia"]


def test_an_unknown_group_has_the_common_noise() -> None:
    hyper = Hyperparameters(Scales(np.ones(2), (1.0, 1.0)), 0.07, {"alpha|nvidia": 0.02})
    groups = np.array(["elsewhere|amd", "alpha|nvidia", "elsewhere|amd"])
    assert hyper.noise(groups).tolist() == [0.07, 0.02, 0.07]


def test_an_effect_of_the_source_is_found_in_the_source_term() -> None:
    frame = made().data.frame
    shift = np.where(frame.category("source") == "beta", 1.0, -1.0)
    at = [t.name for t in KERNEL_TERMS].index("source")
    assert tuned(shift + white(0.03)).shared.sd[at] > 1.5 * tuned(white(0.03)).shared.sd[at]


def test_what_is_found_has_the_shape_of_the_table_and_is_positive() -> None:
    found = tuned(white(), iterations=3)
    assert found.shared.sd.shape == (len(KERNEL_TERMS),)
    assert (found.shared.sd > 0).all()
    assert min(found.shared.lengths) > 0
    assert found.noise_sd == pytest.approx(NOISE_SD, rel=1.0)


def test_two_tunings_are_equal_to_the_last_bit() -> None:
    a, b = tuned(white(), iterations=3), tuned(white(), iterations=3)
    assert a.shared.sd.tobytes() == b.shared.sd.tobytes()
    assert (a.shared.lengths, a.group_noise_sd) == (b.shared.lengths, b.group_noise_sd)


def test_a_cluster_is_a_source_gpu_and_model() -> None:
    frame = made().data.frame
    cluster = clusters(frame)
    assert len(np.unique(cluster)) == 2 * 3 * 5
    for category in ("source", "gpu_kind", "model"):
        for c in np.unique(cluster):
            assert len(np.unique(frame.codes[category][cluster == c])) == 1
    assert set(noise_groups(frame)) == {"alpha|nvidia", "beta|nvidia"}


def test_rows_are_drawn_by_whole_clusters_up_to_a_cap() -> None:
    cluster = np.repeat(np.arange(6), [5, 5, 5, 5, 5, 100])
    index = _whole_clusters(cluster, 60, np.random.default_rng(0))
    assert len(np.unique(index)) == len(index)
    counts = np.bincount(cluster[index], minlength=6)
    assert all(n in (0, 5) for n in counts[:5])
    assert counts[5] in (0, CLUSTER_ROWS)
    assert len(_whole_clusters(cluster, 10_000, np.random.default_rng(0))) == 25 + CLUSTER_ROWS


def test_several_subsets_give_the_geometric_mean_of_what_each_gives() -> None:
    residual = white()
    frame = made().data.frame
    rng = np.random.default_rng(0)
    each = [
        tune(frame, prior_of(frame), residual, rng, rows=90, subsets=1, iterations=3)
        for _ in range(2)
    ]
    both = tuned(residual, iterations=3, subsets=2)
    sds = [h.shared.sd for h in each]
    assert not np.allclose(sds[0], sds[1])
    assert both.shared.sd == pytest.approx(np.sqrt(sds[0] * sds[1]))
    a, b = (h.group_noise_sd["alpha|nvidia"] for h in each)
    assert both.group_noise_sd["alpha|nvidia"] == pytest.approx(np.sqrt(a * b))


def sources_tuned(monkeypatch: pytest.MonkeyPatch, fewest: int, most: int) -> Hyperparameters:
    """Beta varies strongly by model, alpha not at all; both start from the same scales."""
    monkeypatch.setattr(hyperparameters, "OWN_ROWS", (fewest, most))
    frame = made().data.frame
    beta = frame.category("source") == "beta"
    by_load = np.sin(3.0 * np.log(frame["concurrency"]) + frame.codes["model"])
    residual = np.where(beta, 0.5 * by_load, 0.0) + white(0.03)
    return tune_sources(hyper(), frame, prior_of(frame), residual, iterations=8)


def test_a_source_learns_the_scales_of_its_own_terms_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = sources_tuned(monkeypatch, 50, 10_000)
    assert set(found.own) == {"alpha", "beta"}
    of = [t.name for t in KERNEL_TERMS].index("model and load")
    assert found.scales("beta").sd[of] > 2 * found.scales("alpha").sd[of]
    for source in ("alpha", "beta"):
        own, shared = found.scales(source).sd, found.shared.sd
        assert own[list(GLOBAL_TERMS)].tolist() == shared[list(GLOBAL_TERMS)].tolist()
        assert not np.allclose(own[list(SOURCE_TERMS)], shared[list(SOURCE_TERMS)])
    assert found.scales("elsewhere") is found.shared


def test_a_source_of_too_few_or_too_many_rows_keeps_the_shared_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n = made().data.frame.n
    assert sources_tuned(monkeypatch, n, 10 * n).own == {}
    assert sources_tuned(monkeypatch, 1, 5).own == {}

"""The Gaussian layer against the exact posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import hyper, made, prior_of, scenarios

from omnipilot.costmodel import inducing
from omnipilot.costmodel import residual as module
from omnipilot.costmodel.frame import Frame, build_frame
from omnipilot.costmodel.hyperparameters import Scales
from omnipilot.costmodel.kernel import (
    GLOBAL_TERMS,
    SOURCE_TERMS,
    KernelLevels,
    KernelPlaces,
    covariance,
)
from omnipilot.costmodel.residual import GLOBAL, GaussianLayer

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVERY = 5
HYPER = hyper(noise_sd=0.1)


@dataclass(frozen=True)
class Rows:
    frame: Frame
    residual: NDArray[np.float64]
    new: Frame


def rows() -> Rows:
    """60 training rows of both sources and 30 questions beside them."""
    frame = made().data.frame
    effect = 0.3 * (frame.category("source") == "beta") + 0.2 * np.sin(np.log(frame["concurrency"]))
    noise = 0.1 * np.random.default_rng(2).standard_normal(frame.n)
    train = np.arange(0, frame.n, EVERY)
    return Rows(
        frame.take(train), (effect + noise)[train], frame.take(np.arange(3, frame.n, 2 * EVERY))
    )


def fit(
    r: Rows, points: int = 10_000, weight: NDArray[np.float64] | None = None, seed: int = 0
) -> GaussianLayer:
    return GaussianLayer.fit(
        r.frame, prior_of(r.frame), r.residual,
        np.ones(r.frame.n) if weight is None else weight, HYPER,
        n_global=points, n_source=points, rng=np.random.default_rng(seed),
    )  # fmt: skip


def places(frame: Frame) -> KernelPlaces:
    return KernelPlaces.from_frame(frame, prior_of(frame))


def kernel_of(a: Frame, b: Frame, levels: KernelLevels) -> NDArray[np.float64]:
    """Global covariance, plus that of the source terms where the sources agree."""
    x, y = (
        levels.inputs(KernelPlaces.from_frame(a, prior_of(a))),
        levels.inputs(KernelPlaces.from_frame(b, prior_of(b))),
    )
    shared = covariance(x, y, HYPER.shared.sd, HYPER.shared.lengths, GLOBAL_TERMS)
    own = covariance(x, y, HYPER.shared.sd, HYPER.shared.lengths, SOURCE_TERMS)
    return (shared + own).astype(np.float64)


def exact(r: Rows, weight: NDArray[np.float64], new: Frame) -> NDArray[np.float64]:
    """Posterior mean by the textbook formula."""
    levels = KernelLevels.from_frame(r.frame)
    k = kernel_of(r.frame, r.frame, levels) + np.diag(HYPER.noise_sd**2 / weight)
    return np.asarray(kernel_of(new, r.frame, levels) @ np.linalg.solve(k, r.residual))


@pytest.mark.parametrize("without_source", [False, True])
def test_what_is_said_of_a_left_out_group_is_what_a_layer_without_it_says(
    monkeypatch: pytest.MonkeyPatch, *, without_source: bool
) -> None:
    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    monkeypatch.setattr(module, "REWEIGHTINGS", 0)
    r = rows()
    if without_source:  # a site's own rows have the global block alone
        levels = tuple("" if s == "beta" else s for s in r.frame.levels["source"])
        r = replace(r, frame=replace(r.frame, levels={**r.frame.levels, "source": levels}))
    groups = np.asarray([f"g{i % 7}" for i in range(r.frame.n)])
    weight = np.linspace(0.5, 1.0, r.frame.n)
    layer, found = GaussianLayer.fit_left_out(
        r.frame, prior_of(r.frame), r.residual, weight, HYPER, groups,
        n_global=10_000, n_source=10_000, rng=np.random.default_rng(0),
    )  # fmt: skip
    whole = fit(r, weight=weight)
    for name, block in layer.blocks.items():
        assert np.array_equal(block.alpha, whole.blocks[name].alpha)
    for group in np.unique(groups):
        out, kept = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        part = Rows(r.frame.take(kept), r.residual[kept], r.new)
        asked = r.frame.take(out)
        said = fit(part, weight=weight[kept]).predict(asked, places(asked))[0]
        assert found[out] == pytest.approx(said, abs=2e-3)
    seen = whole.predict(r.frame, places(r.frame))[0]
    assert np.abs(found - seen).max() > 0.02


def test_errors_of_left_out_groups_are_as_large_as_those_of_rows_never_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Odd rows are told by neighbours that know them, so the closed form alone says too little."""
    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    frame = made().data.frame
    rng = np.random.default_rng(4)
    residual = np.sin(np.log(frame["concurrency"])) + 0.05 * rng.standard_t(1.5, frame.n)
    groups = np.asarray([f"g{i // 2}" for i in range(frame.n)])

    def errors() -> NDArray[np.float64]:
        _, means = GaussianLayer.fit_left_out(
            frame, prior_of(frame), residual, np.ones(frame.n), hyper(noise_sd=0.1), groups,
            n_global=200, n_source=200, rng=np.random.default_rng(0),
        )  # fmt: skip
        return residual - means

    corrected = errors()
    monkeypatch.setattr(module, "UNDERSTATEMENT_REFITS", 0)
    factor = corrected / errors()
    assert factor == pytest.approx(factor[0])
    assert 1.0 < factor[0] < 2.0


@pytest.mark.parametrize(("true_sd", "told", "most"), [(0.0, 0.3, 0.9), (0.5, 0.5, 1.02)])
def test_noise_is_what_leaving_groups_out_bears_out(
    monkeypatch: pytest.MonkeyPatch, true_sd: float, told: float, most: float
) -> None:
    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    frame = made().data.frame
    rng = np.random.default_rng(2)
    smooth = np.sin(2.0 * np.log(frame["concurrency"]))
    residual = smooth + true_sd * rng.standard_normal(frame.n)
    groups = np.asarray([f"g{i % 20}" for i in range(frame.n)])

    def misses(told: float) -> tuple[GaussianLayer, float]:
        layer, found = GaussianLayer.fit_left_out(
            frame, prior_of(frame), residual, np.ones(frame.n), hyper(noise_sd=told), groups,
            n_global=60, n_source=60, rng=np.random.default_rng(0),
        )  # fmt: skip
        return layer, float(np.abs(residual - found).mean())

    layer, miss = misses(told)
    if true_sd == 0:
        assert max(layer.hyper.group_noise_sd.values()) <= told / 2
    monkeypatch.setattr(module, "NOISE_FACTORS", (1.0,))
    assert miss < most * misses(told)[1]


@pytest.mark.parametrize(("halved", "pivot_block"), [(False, 64), (True, 64), (False, 7)])
def test_with_every_row_an_inducing_point_the_mean_is_the_exact_posterior(
    monkeypatch: pytest.MonkeyPatch, pivot_block: int, *, halved: bool
) -> None:
    monkeypatch.setattr(module, "REWEIGHTINGS", 0)
    monkeypatch.setattr(inducing, "PIVOT_BLOCK", pivot_block)
    r = rows()
    weight = np.ones(r.frame.n)
    if halved:
        weight[::3] = 0.1
    layer = fit(r, weight=weight)
    assert len(layer.blocks[GLOBAL].points) > 0.9 * r.frame.n
    for frame in (r.frame, r.new):
        mean, _ = layer.predict(frame, places(frame))
        truth = exact(r, weight, frame)
        assert np.abs(truth).max() > 0.2
        assert np.abs(mean - truth).max() < 0.01


def test_few_inducing_points_come_near_the_exact_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REWEIGHTINGS", 0)
    r = rows()
    truth = exact(r, np.ones(r.frame.n), r.frame)
    mean, _ = fit(r, points=25).predict(r.frame, places(r.frame))
    assert len(fit(r, points=25).blocks[GLOBAL].points) == 25
    assert np.abs(mean - truth).mean() < 0.25 * np.abs(truth).mean()


def test_one_odd_row_pulls_its_neighbours_less_than_a_gaussian_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    r = rows()
    odd = r.residual.copy()
    odd[7] += 3.0
    spoilt = replace(r, residual=odd)
    others = np.arange(r.frame.n) != 7

    def pull() -> float:
        clean = fit(r).predict(r.frame, places(r.frame))[0]
        moved = fit(spoilt).predict(r.frame, places(r.frame))[0]
        return float(np.abs(moved - clean)[others].max())

    robust = pull()
    monkeypatch.setattr(module, "REWEIGHTINGS", 0)
    assert robust < 0.75 * pull()


def test_an_unseen_source_gets_the_global_part_alone() -> None:
    r = rows()
    layer = fit(r)
    only_global = GaussianLayer(layer.levels, {GLOBAL: layer.blocks[GLOBAL]}, layer.hyper)
    unseen = build_frame([replace(s, source="gamma") for s in scenarios()[:20]])
    mean, _ = layer.predict(unseen, places(unseen))
    alone, _ = only_global.predict(unseen, places(unseen))
    assert mean.tobytes() == alone.tobytes()
    known = build_frame(scenarios()[:20])
    ours, _ = layer.predict(known, places(known))
    assert np.abs(ours - only_global.predict(known, places(known))[0]).max() > 0.01


def test_rows_without_a_source_name_leave_the_global_block_whole() -> None:
    questions = [replace(s, source="" if s.source == "beta" else s.source) for s in scenarios()]
    frame = build_frame(questions[::EVERY])
    layer = GaussianLayer.fit(
        frame, prior_of(frame), rows().residual, np.ones(frame.n), HYPER,
        n_global=10_000, n_source=10_000, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert set(layer.blocks) == {GLOBAL, "alpha"}
    assert len(layer.blocks[GLOBAL].points) > 0.9 * frame.n


def test_similarity_is_1_at_a_measured_position_and_falls_away_from_it() -> None:
    r = rows()
    layer = fit(r)
    at = layer.predict(r.frame, places(r.frame))[1]
    assert at == pytest.approx(np.ones(r.frame.n), abs=0.02)
    far = build_frame(
        [replace(s, concurrency=90_000.0, prompt_tokens=100_000.0) for s in scenarios()[:5]]
    )
    near = r.new
    similarity = [layer.predict(f, places(f))[1] for f in (near, far)]
    assert 0 <= similarity[1].max() < similarity[0].min() <= 1.001


def test_two_fits_are_equal_to_the_last_bit_and_the_seed_decides() -> None:
    r = rows()
    a, b, other = fit(r, 20), fit(r, 20), fit(r, 20, seed=1)
    for name, block in a.blocks.items():
        assert block.alpha.tobytes() == b.blocks[name].alpha.tobytes()
        assert (block.points.codes == b.blocks[name].points.codes).all()
    assert (a.blocks[GLOBAL].points.workload != other.blocks[GLOBAL].points.workload).any()


def test_an_answer_is_the_same_in_any_batch() -> None:
    r = rows()
    layer = fit(r)
    whole, _ = layer.predict(r.new, places(r.new))
    for i in (0, 11, r.new.n - 1):
        one = r.new.take(np.array([i]))
        assert layer.predict(one, places(one))[0] == pytest.approx(whole[i], abs=1e-4)


def test_the_fitted_layer_holds_no_label() -> None:
    layer = fit(rows())
    for block in layer.blocks.values():
        assert set(block.__slots__) == {"points", "alpha"}
        assert set(block.points.__slots__) == {"codes", "workload", "physics", "regime"}


def test_a_source_with_scales_of_its_own_is_answered_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REWEIGHTINGS", 0)
    r = rows()
    own = Scales(3.0 * HYPER.shared.sd, (0.5, 2.0))
    layer = GaussianLayer.fit(
        r.frame, prior_of(r.frame), r.residual, np.ones(r.frame.n),
        replace(HYPER, own={"beta": own}),
        n_global=10_000, n_source=10_000, rng=np.random.default_rng(0),
    )  # fmt: skip
    levels = KernelLevels.from_frame(r.frame)

    def kernel(a: Frame, b: Frame) -> NDArray[np.float64]:
        x, y = levels.inputs(places(a)), levels.inputs(places(b))
        beta = np.outer(a.category("source") == "beta", b.category("source") == "beta")
        wide = covariance(x, y, own.sd, own.lengths, SOURCE_TERMS)
        plain = covariance(x, y, HYPER.shared.sd, HYPER.shared.lengths, SOURCE_TERMS)
        shared = covariance(x, y, HYPER.shared.sd, HYPER.shared.lengths, GLOBAL_TERMS)
        return (shared + np.where(beta, wide, plain)).astype(np.float64)

    k = kernel(r.frame, r.frame) + HYPER.noise_sd**2 * np.eye(r.frame.n)
    truth = kernel(r.new, r.frame) @ np.linalg.solve(k, r.residual)
    assert np.abs(layer.predict(r.new, places(r.new))[0] - truth).max() < 0.01
    assert np.abs(fit(r).predict(r.new, places(r.new))[0] - truth).max() > 0.03

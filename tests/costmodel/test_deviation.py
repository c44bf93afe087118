"""Conditioning on a site's rows against closed forms and against refitting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import MODELS, made, prior_of, scenario, small_fit

from omnipilot.costmodel import deviation as module
from omnipilot.costmodel.deviation import DEVIATION_TERMS, Deviation, class_terms
from omnipilot.costmodel.folds import FEW_GROUPS
from omnipilot.costmodel.frame import Frame, build_frame
from omnipilot.costmodel.hyperparameters import Hyperparameters, Scales
from omnipilot.costmodel.novelty import NOVELTY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.physics import Physics

NOISE_SD = 0.1


def deviation(category: str = "source", noise_sd: float = NOISE_SD, **sds: float) -> Deviation:
    """A deviation whose terms have the given standard deviations, the named ones alone if any."""
    sd = np.asarray(
        [sds.get(t.name.replace(" ", "_"), 0.0 if sds else t.sd) for t in DEVIATION_TERMS]
    )
    return Deviation(category, sd, (1.0, 1.0), noise_sd)


def some(n: int = 24) -> Frame:
    frame = made().data.frame
    mine = np.flatnonzero(frame.category("source") == "alpha")
    return frame.take(mine[:: max(len(mine) // n, 1)][:n])


def error_of(frame: Frame) -> NDArray[np.float64]:
    wave = np.sin(np.log(frame["concurrency"])) + 0.5 * (frame.category("gpu_kind") == "h100-80")
    return np.asarray(0.3 + 0.2 * wave)


def test_two_arms_agree_with_the_closed_form() -> None:
    # One shared offset (sd a) and one of each GPU kind (sd b): the textbook two-arm posterior.
    a, b = 0.3, 0.2
    d = deviation(source=a, GPU_kind=b)
    seen = build_frame([scenario(gpu="h100-80")])
    asked = build_frame([scenario(gpu="h100-80"), scenario(gpu="a100-80")])
    local = d.condition(seen, prior_of(seen), np.array([0.5]))
    mean, covariance = local.joint(asked, prior_of(asked))
    total = a**2 + b**2 + NOISE_SD**2
    assert mean == pytest.approx([(a**2 + b**2) * 0.5 / total, a**2 * 0.5 / total], rel=1e-4)
    assert covariance[0, 0] == pytest.approx(a**2 + b**2 - (a**2 + b**2) ** 2 / total, rel=1e-3)
    assert covariance[1, 1] == pytest.approx(a**2 + b**2 - a**4 / total, rel=1e-3)
    assert covariance[0, 1] == pytest.approx(a**2 - a**2 * (a**2 + b**2) / total, rel=1e-3)


def test_rows_given_together_or_one_after_the_other_tell_the_same() -> None:
    d = deviation()
    frame = some(6)
    error, asked = error_of(frame), some(12)
    together = d.condition(frame, prior_of(frame), error)
    mean, covariance = together.joint(asked, prior_of(asked))
    # One by one: the Kalman update of the joint prior over rows and questions.
    prior_all = d.joint(*_stack(frame, asked))
    centre = np.zeros(len(prior_all))
    for i in range(frame.n):
        gain = prior_all[:, i] / (prior_all[i, i] + NOISE_SD**2)
        centre = centre + gain * (error[i] - centre[i])
        prior_all = prior_all - np.outer(gain, prior_all[i])
    assert mean == pytest.approx(centre[frame.n :], abs=2e-3)
    assert covariance == pytest.approx(prior_all[frame.n :, frame.n :], abs=2e-3)


def _stack(a: Frame, b: Frame) -> tuple[Frame, Physics]:
    frame = Frame(
        a.n + b.n,
        {k: np.r_[v, b.columns[k]] for k, v in a.columns.items()},
        {k: np.r_[v, b.codes[k]] for k, v in a.codes.items()},
        a.levels,
    )
    return frame, prior_of(frame)


def test_conditioning_says_what_a_fit_on_the_rows_as_well_says() -> None:
    data = made().data
    target = "output_tokens_per_s"
    hidden = (data.frame.category("model") == MODELS[2]) & np.isfinite(data.labels[target])
    slow = data.labels[target] - np.where(hidden, 0.6, 0.0)
    data = replace(data, labels=data.labels | {target: slow})
    seen = np.flatnonzero(hidden)[::3]
    asked = data.frame.take(np.setdiff1d(np.flatnonzero(hidden), seen))
    without, augmented = ~hidden, ~hidden
    augmented[seen] = True

    def median(model: FittedModel) -> NDArray[np.float64]:
        return np.log(model.predict(asked).values[target][:, 1])

    before = small_fit(data.take(without))
    local = data.take(seen)
    after, refitted = before.condition(local.frame, local.labels), small_fit(data.take(augmented))
    apart = np.abs(median(before) - median(refitted)).mean()
    assert apart > 0.3
    assert np.abs(median(after) - median(refitted)).mean() < 0.3 * apart


def test_what_is_left_of_the_variance_is_between_none_and_all() -> None:
    d = deviation()
    frame = some()
    local = d.condition(frame, prior_of(frame), error_of(frame))
    mean, left = local.shift(frame, prior_of(frame))
    assert np.all((left >= 0) & (left < 0.3))
    assert np.abs(mean - error_of(frame)).mean() < 0.05
    other = build_frame([replace(scenario(), source="elsewhere")])
    mean, left = local.shift(other, prior_of(other))
    assert mean == pytest.approx([0.0])
    assert left == pytest.approx([1.0])
    assert d.narrowing(np.ones(1)) == pytest.approx([1.0])


def test_leaving_out_a_cell_equals_conditioning_without_it() -> None:
    d = deviation()
    frame = some(20)
    error = error_of(frame)
    cells = np.asarray([str(c) for c in frame["concurrency"]])
    local = d.condition(frame, prior_of(frame), error)
    left, sd = local.left_out(frame, prior_of(frame), error, cells)
    for cell in np.unique(cells):
        out, rest = np.flatnonzero(cells == cell), np.flatnonzero(cells != cell)
        part, test = frame.take(rest), frame.take(out)
        mean, covariance = d.condition(part, prior_of(part), error[rest]).joint(
            test, prior_of(test)
        )
        assert left[out] == pytest.approx(error[out] - mean, abs=5e-3)
        assert sd[out] == pytest.approx(np.sqrt(np.diag(covariance) + NOISE_SD**2), rel=0.03)


def test_inducing_points_stand_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    d = deviation()
    frame = made().data.frame
    frame = frame.take(np.flatnonzero(frame.category("source") == "alpha"))
    error = error_of(frame)
    asked = some()
    exact = d.condition(frame, prior_of(frame), error).shift(asked, prior_of(asked))
    monkeypatch.setattr(module, "MOST_POINTS", frame.n // 2)
    fewer = d.condition(frame, prior_of(frame), error)
    assert len(fewer.gain) == frame.n // 2
    assert fewer.shift(asked, prior_of(asked))[0] == pytest.approx(exact[0], abs=0.06)


def test_one_odd_row_among_many_moves_little() -> None:
    d = deviation()
    frame = made().data.frame
    frame = frame.take(np.flatnonzero(frame.category("source") == "alpha")[:60])
    error = error_of(frame)
    spoilt = error.copy()
    spoilt[7] += 5.0
    clean = d.condition(frame, prior_of(frame), error).shift(frame, prior_of(frame))[0]
    moved = d.condition(frame, prior_of(frame), spoilt).shift(frame, prior_of(frame))[0]
    assert np.abs(moved - clean).max() < 0.5


def test_a_site_with_many_cells_sizes_its_own_band() -> None:
    d = deviation()
    frame = made().data.frame
    frame = frame.take(np.flatnonzero(frame.category("source") == "alpha"))
    rng = np.random.default_rng(0)
    error = error_of(frame) + NOISE_SD * rng.standard_normal(frame.n)
    cells = np.arange(frame.n).astype(str)
    local = d.condition(frame, prior_of(frame), error, cells=cells)
    assert local.band is not None
    assert -2.5 < local.band[0] < 0 < local.band[1] < 2.5
    few = frame.take(np.arange(10))
    assert d.condition(few, prior_of(few), error[:10], cells=cells[:10]).band is None


def test_the_variances_of_planted_errors_are_found() -> None:
    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    frame = made().data.frame
    rng = np.random.default_rng(1)
    kind = rng.standard_normal(len(frame.levels["gpu_kind"]))[frame.codes["gpu_kind"]]
    error = 0.4 * kind + 0.05 * rng.standard_normal(frame.n)
    found = Deviation.fit(frame, prior_of(frame), error, "", np.random.default_rng(0))
    by_name = dict(zip((t.name for t in DEVIATION_TERMS), found.sd, strict=True))
    assert by_name["GPU kind"] > 3 * by_name["arm"]
    assert found.noise_sd < 0.12


@pytest.mark.parametrize(("category", "subsets"), [("", 9), ("source", 1), ("model", 1)])
def test_few_groups_are_learned_from_as_one(
    monkeypatch: pytest.MonkeyPatch, category: str, subsets: int
) -> None:
    frame = made().data.frame
    assert len(frame.levels["model"]) < FEW_GROUPS
    asked: dict[str, int] = {}

    def tuned(*_: object, subsets: int = 3, **__: object) -> Hyperparameters:
        asked["subsets"] = subsets
        sd = np.asarray([t.sd for t in DEVIATION_TERMS])
        return Hyperparameters(Scales(sd, (1.0, 1.0)), 0.1, {})

    monkeypatch.setattr(module, "tune", tuned)
    Deviation.fit(frame, prior_of(frame), np.zeros(frame.n), category, np.random.default_rng(0))
    assert asked["subsets"] == subsets


def test_groups_of_a_class_share_nothing() -> None:
    for novelty in NOVELTY:
        if novelty.category:
            assert all(novelty.category in t.same for t in class_terms(novelty.category))

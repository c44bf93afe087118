"""The covariance of residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from costmodel_builders import hyper, made, prior_of, scenario

from omnipilot.costmodel.frame import CATEGORY_NAMES, build_frame
from omnipilot.costmodel.kernel import (
    GLOBAL_TERMS,
    KERNEL_TERMS,
    N_PHYSICS_COORDINATES,
    N_REGIME_COORDINATES,
    N_WORKLOAD_COORDINATES,
    REGIME,
    SOURCE_TERMS,
    KernelInputs,
    KernelLevels,
    KernelPlaces,
    KernelTerm,
    covariance,
    matern32,
    squared_distance,
)

HYPER = hyper()
ALL_TERMS = tuple(range(len(KERNEL_TERMS)))


def inputs_of(every: int = 3) -> KernelInputs:
    frame = made().data.frame
    inputs = KernelLevels.from_frame(frame).inputs(KernelPlaces.from_frame(frame, prior_of(frame)))
    return inputs.take(np.arange(0, frame.n, every))


def test_terms_are_either_of_one_source_or_of_all() -> None:
    assert sorted((*GLOBAL_TERMS, *SOURCE_TERMS)) == list(ALL_TERMS)
    assert not set(GLOBAL_TERMS) & set(SOURCE_TERMS)
    assert all("source" in KERNEL_TERMS[j].same for j in SOURCE_TERMS)
    assert all("source" not in KERNEL_TERMS[j].same for j in GLOBAL_TERMS)
    assert GLOBAL_TERMS
    assert SOURCE_TERMS


def test_terms_are_named_once_and_made_of_known_categories() -> None:
    names = [t.name for t in KERNEL_TERMS]
    assert len(set(names)) == len(names)
    for term in KERNEL_TERMS:
        assert set(term.same) <= {*CATEGORY_NAMES, "n_gpus"}, term.name
        assert term.distance in {"", "workload", "physics"}
        assert term.same or term.distance


@pytest.mark.parametrize("terms", [ALL_TERMS, GLOBAL_TERMS, SOURCE_TERMS])
def test_covariance_is_symmetric_and_positive_semidefinite(terms: tuple[int, ...]) -> None:
    inputs = inputs_of()
    k = covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, terms).astype(np.float64)
    assert np.abs(k - k.T).max() < 1e-5
    assert np.linalg.eigvalsh((k + k.T) / 2).min() > -1e-4 * k.max()


def test_a_row_covaries_with_itself_by_the_sum_of_the_variances() -> None:
    inputs = inputs_of()
    k = covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, ALL_TERMS)
    assert np.diag(k) == pytest.approx(float(np.sum(HYPER.shared.sd**2)), rel=1e-2)
    assert k.max() <= float(np.sum(HYPER.shared.sd**2)) * 1.0001


def test_global_and_source_parts_add_up() -> None:
    inputs = inputs_of(10)
    whole, shared, own = (
        covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, terms)
        for terms in (ALL_TERMS, GLOBAL_TERMS, SOURCE_TERMS)
    )
    assert whole == pytest.approx(shared + own, abs=1e-5)


def test_one_term_is_its_variance_where_all_its_categories_agree() -> None:
    frame = build_frame(
        [
            scenario(source="alpha", gpu="h100-80"),
            scenario(source="alpha", gpu="l40s-48", concurrency=99.0),
            scenario(source="beta", gpu="h100-80"),
            scenario(source="alpha", gpu="h100-80", concurrency=99.0),
        ]
    )
    inputs = KernelLevels.from_frame(frame).inputs(KernelPlaces.from_frame(frame, prior_of(frame)))
    at = next(j for j, t in enumerate(KERNEL_TERMS) if t.same == ("source", "gpu_kind")
              and not t.distance)  # fmt: skip
    sd = np.full(len(KERNEL_TERMS), 0.5)
    k = covariance(inputs, inputs, sd, (1.0, 1.0), (at,))
    assert k[0].tolist() == [0.25, 0.0, 0.0, 0.25]


@pytest.mark.parametrize("term", ["arm", "arm and load"])
def test_arms_whose_gpus_share_layers_or_engines_are_told_otherwise_are_others(term: str) -> None:
    arms: tuple[dict[str, Any], ...] = (
        {}, {}, {"expert_parallel": True}, {"attention_dp": True}, {"engine_settings": "a"},
        {"engine_settings": "a"}, {"engine_settings": "b"},
    )  # fmt: skip
    frame = build_frame([scenario(**arm) for arm in arms])
    inputs = KernelLevels.from_frame(frame).inputs(KernelPlaces.from_frame(frame, prior_of(frame)))
    (j,) = (i for i, t in enumerate(KERNEL_TERMS) if t.name == term)
    k = covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, (j,))
    together = np.array([0, 0, 1, 2, 3, 3, 4])
    assert np.array_equal(k > 0, together[:, None] == together[None, :])


def test_a_distance_term_fades_with_load() -> None:
    frame = build_frame([scenario(concurrency=c) for c in (1.0, 2.0, 8.0, 512.0)])
    inputs = KernelLevels.from_frame(frame).inputs(KernelPlaces.from_frame(frame, prior_of(frame)))
    at = next(j for j, t in enumerate(KERNEL_TERMS) if t.distance == "workload")
    row = covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, (at,))[0]
    assert row[0] > row[1] > row[2] > row[3] > 0


def test_rows_that_the_same_part_bounds_move_together_however_far_apart_their_loads() -> None:
    # One sequence at a time is bound by weights, thousands by their cache and by compute.
    frame = build_frame(
        [
            scenario(concurrency=1.0, prompt_tokens=64.0, output_tokens=512.0),
            scenario(concurrency=1.0, prompt_tokens=64.0, output_tokens=16_000.0),
            scenario(concurrency=512.0, prompt_tokens=8000.0, output_tokens=64.0),
        ]
    )
    table = (KernelTerm("regime", ("source",), "regime", 0.2),)
    places = KernelPlaces.from_frame(frame, prior_of(frame), table)
    assert places.regime.shape == (3, N_REGIME_COORDINATES)
    assert np.linalg.norm(places.regime, axis=1) == pytest.approx(np.ones(3), rel=1e-5)
    inputs = KernelLevels.from_frame(frame, table).inputs(places)
    k = covariance(inputs, inputs, np.array([0.2]), (1.0, 1.0), (0,), table)
    assert np.diag(k) == pytest.approx(np.full(3, 0.04), rel=1e-4)
    assert k[0, 1] > 0.9 * 0.04
    assert k[0, 2] < 0.5 * 0.04


def test_the_parts_of_a_regime_are_the_whole_time() -> None:
    frame = made().data.frame
    shares = np.stack([c.compute(frame, prior_of(frame)) for c in REGIME], axis=1)
    assert (shares >= 0).all()
    assert shares.sum(axis=1) == pytest.approx(np.ones(frame.n), abs=1e-6)


def test_without_a_term_of_the_regime_none_is_worked_out() -> None:
    frame = made().data.frame
    assert KernelPlaces.from_frame(frame, prior_of(frame)).regime.shape == (frame.n, 0)


def test_a_level_without_rows_never_matches_not_even_itself() -> None:
    known = build_frame([scenario(gpu="a100-80"), scenario(gpu="h100-80")])
    levels = KernelLevels.from_frame(known)
    new = build_frame([scenario(gpu="l40s-48", source="gamma"), scenario(gpu="l40s-48")])
    inputs = levels.inputs(KernelPlaces.from_frame(new, prior_of(new)))
    of_gpu = [j for j, t in enumerate(KERNEL_TERMS) if "gpu_kind" in t.same]
    assert (inputs.codes[:, of_gpu] == -1).all()
    for terms in [(j,) for j in of_gpu]:
        assert not covariance(inputs, inputs, HYPER.shared.sd, HYPER.shared.lengths, terms).any()
        measured = levels.inputs(KernelPlaces.from_frame(known, prior_of(known)))
        assert not covariance(inputs, measured, HYPER.shared.sd, HYPER.shared.lengths, terms).any()


def test_codes_do_not_depend_on_what_else_is_asked() -> None:
    frame = made().data.frame
    levels = KernelLevels.from_frame(frame)
    whole = levels.inputs(KernelPlaces.from_frame(frame, prior_of(frame)))
    part = frame.take(np.arange(17, 40))
    assert (
        levels.inputs(KernelPlaces.from_frame(part, prior_of(part))).codes == whole.codes[17:40]
    ).all()


def test_coordinates_have_the_stated_number_of_columns() -> None:
    inputs = inputs_of(50)
    assert inputs.workload.shape == (len(inputs), N_WORKLOAD_COORDINATES)
    assert inputs.physics.shape == (len(inputs), N_PHYSICS_COORDINATES)
    assert np.isfinite(inputs.workload).all()
    assert np.isfinite(inputs.physics).all()


def test_squared_distances_are_those_of_the_differences() -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((7, 4)).astype(np.float32)
    b = rng.standard_normal((5, 4)).astype(np.float32)
    direct = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    assert squared_distance(a, b) == pytest.approx(direct, abs=1e-4)
    assert squared_distance(a, a).min() >= 0


def test_the_matern_correlation_is_the_textbook_formula() -> None:
    # Rasmussen and Williams 2006, eq. 4.17, at r = 2 and length 0.5
    s = np.sqrt(3.0) * 2.0 / 0.5
    value = matern32(np.array([[4.0]], dtype=np.float32), 0.5)
    assert value[0, 0] == pytest.approx((1 + s) * np.exp(-s), rel=1e-5)
    assert matern32(np.zeros((1, 1), dtype=np.float32), 0.5)[0, 0] == 1.0

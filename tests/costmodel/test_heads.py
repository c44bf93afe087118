"""Heads: which targets share a residual, and the lead label of a row."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from costmodel_builders import scenario

from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.heads import HEAD_OF_TARGET, HEADS, lead_labels
from omnipilot.costmodel.physics_fit import TARGET_SCALE
from omnipilot.domain.targets import TARGET_NAMES

# 300 tokens in, 100 out
FRAME = build_frame([scenario(prompt_tokens=300, output_tokens=100)] * 4)


def labels(**known: list[float]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    out = {name: np.full(FRAME.n, np.nan) for name in TARGET_NAMES}
    for name, values in known.items():
        with np.errstate(invalid="ignore"):
            out[name] = np.log(np.array(values))
    return out


NONE = float("nan")


def test_a_row_with_only_an_aggregate_rate_gives_its_output_rate_by_the_lengths() -> None:
    # 400 tok/s in all x 100 / (300 + 100) = 100 output tok/s
    lead = lead_labels(FRAME, labels(aggregate_tokens_per_s=[400.0, NONE, NONE, NONE]))
    rate = np.exp(lead["output_tokens_per_s"])
    assert rate[0] == pytest.approx(100.0)
    assert np.isnan(rate[1:]).all()


def test_a_row_with_only_a_request_rate_gives_its_output_rate_by_the_lengths() -> None:
    # 2 requests/s x 100 tokens = 200 output tok/s
    lead = lead_labels(FRAME, labels(request_per_s=[NONE, 2.0, NONE, NONE]))
    assert np.exp(lead["output_tokens_per_s"])[1] == pytest.approx(200.0)


def test_a_measured_output_rate_wins_then_the_aggregate_then_the_requests() -> None:
    lead = lead_labels(
        FRAME,
        labels(
            output_tokens_per_s=[111.0, NONE, NONE, NONE],
            aggregate_tokens_per_s=[400.0, 800.0, NONE, NONE],
            request_per_s=[9.0, 9.0, 9.0, NONE],
        ),
    )
    rate = np.exp(lead["output_tokens_per_s"])
    assert rate[:3] == pytest.approx([111.0, 200.0, 900.0])
    assert np.isnan(rate[3])


def test_the_other_heads_take_their_own_labels() -> None:
    given = labels(ttft_p50_s=[0.5] * 4, power_mean_w=[700.0] * 4)
    lead = lead_labels(FRAME, given)
    assert set(lead) == {head.lead for head in HEADS}
    assert np.exp(lead["ttft_p50_s"]) == pytest.approx([0.5] * 4)
    assert np.exp(lead["power_mean_w"]) == pytest.approx([700.0] * 4)
    assert np.isnan(lead["itl_p50_s"]).all()


def test_the_labels_given_are_left_as_they_were() -> None:
    given = labels(aggregate_tokens_per_s=[400.0] * 4)
    lead_labels(FRAME, given)
    assert np.isnan(given["output_tokens_per_s"]).all()


def test_every_target_has_at_most_one_head_and_every_lead_is_fitted_by_the_prior() -> None:
    counts = Counter(target for head in HEADS for target in head.targets)
    assert set(counts.values()) == {1}
    assert set(counts) <= set(TARGET_NAMES)
    for head in HEADS:
        assert head.lead in head.targets
        assert head.lead in TARGET_SCALE
        assert all(HEAD_OF_TARGET[t] is head for t in head.targets)

"""Sentences that are worked out from an answer's own figures."""

from __future__ import annotations

import pytest

from omnipilot.advisor.words import queue_sentence
from omnipilot.domain import (
    Arm,
    FitVerdict,
    RankedArm,
    ServingRequest,
    SupportVerdict,
    TargetPrediction,
    UtilityTerms,
)

# 512 clients at 2 requests/s: 256 s each, 1,000 steps of 50 ms of them.
REQUEST = ServingRequest("m", 512, 4096, 3072, 1001)
SUPPORT = SupportVerdict(True, (), "seen", 0.0, "high")


def arm(request_per_s: float, tpot_s: float, ttft_s: float, upper_s: float) -> RankedArm:
    def target(q50: float, upper: float = 0.0) -> TargetPrediction:
        return TargetPrediction(q50 / 2, q50, q50 * 2, q50 / 2, upper or q50 * 2, "", "model")

    targets = {
        "request_per_s": target(request_per_s),
        "tpot_p50_s": target(tpot_s),
        "ttft_p50_s": target(ttft_s, upper_s),
    }
    terms = UtilityTerms(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    fit = FitVerdict("fits", "fits", "fits")
    return RankedArm(Arm("h100", 1, "bf16"), targets, terms, SUPPORT, "high", fit, 0.0, 0.0, "")


def test_a_wait_that_the_rate_implies_and_ttft_does_not_cover_is_told() -> None:
    said = queue_sentence(REQUEST, [arm(2.0, 0.05, 20.0, 124.0)])
    assert said.startswith("512 requests at once are more than some arms run")
    assert said.endswith("(Little's law): 1x h100 bf16 206 s.")
    assert queue_sentence(REQUEST, [arm(2.0, 0.05, 20.0, 124.0)] * 6).endswith(" and 2 more.")


@pytest.mark.parametrize(
    "consistent",
    [arm(2.0, 0.05, 150.0, 300.0), arm(9.0, 0.05, 2.0, 5.0), arm(2.0, 0.2, 5.0, 9.0)],
    ids=["within the interval", "nobody waits", "most of the time is decoding"],
)
def test_figures_that_agree_are_left_alone(consistent: RankedArm) -> None:
    assert queue_sentence(REQUEST, [consistent]) == ""

"""What a report shows of a site besides its measured rows: an example advice and its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.advisor.digest import read_digest
from omnipilot.advisor.question import Question
from omnipilot.decide.utility import TERMS
from omnipilot.domain import ServingRequest
from omnipilot.domain.errors import OmniPilotError
from omnipilot.evaluate.material import ArmFact, FanPoint, SiteFacts

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.domain import RankedArm, Recommendation
    from omnipilot.learn.dataset import Dataset

_LOADS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_VALUE_TARGET: Final = "aggregate_tokens_per_s"
_CONCURRENCY: Final = 64
_SHORTEST_CONTEXT: Final = 1024


def report_facts(advisor: Advisor, dataset: Dataset, now_s: float) -> SiteFacts:
    """Gather the site's records and the advice for its most measured model.

    A site without a usable cost model, or on which nothing starts, has no example.

    Raises:
        StateError: a log of the site cannot be read.
    """
    freshness_s = advisor.settings.freshness_s
    digest, _ = read_digest(advisor.home, now_s=now_s, site=advisor.settings)
    launches: dict[str, tuple[float, float]] = {}
    for one in (*digest.cluster, *digest.own):
        good, tried = launches.get(f"{one.n_gpus}x {one.gpu}", (0.0, 0.0))
        launches[f"{one.n_gpus}x {one.gpu}"] = (good + one.successes, tried + one.attempts)
    facts = SiteFacts(freshness_s=freshness_s, launches=launches)
    request = example_request(dataset)
    try:
        found = advisor.advise(Question(request, now_s=now_s, ask_starts=False)).recommendation
    except OmniPilotError:
        return facts
    facts = replace(
        facts,
        request=(
            f"{request.model_id}, {request.concurrency} requests in flight, context of "
            f"{request.context_tokens:,} tokens"
        ),
        command=(
            f"omnipilot explain --model {request.model_id} --concurrency {request.concurrency} "
            f"--context {request.context_tokens} --no-live"
        ),
        arms=[_fact(arm, request.duration_h) for arm in found.ranked],
    )
    if not found.ranked:
        return facts
    return replace(
        facts, fan_arm=found.ranked[0].arm.label, fan=_fan(advisor, found, request, now_s)
    )


def example_request(dataset: Dataset) -> ServingRequest:
    """The most measured model under a round load of the context that its rows have."""
    frame = dataset.data.frame
    names = frame.category("model")
    model = Counter(names.tolist()).most_common(1)[0][0]
    mine = names == model
    context = int(np.median((frame["prompt_tokens"] + frame["output_tokens"])[mine]))
    context = max(context, _SHORTEST_CONTEXT)
    prompt, output = ServingRequest.with_lengths(context, None, None)
    return ServingRequest(
        model_id=str(model), concurrency=_CONCURRENCY, context_tokens=context,
        prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip


def _fact(arm: RankedArm, hours: float) -> ArmFact:
    terms = {t.name: t.sign * getattr(arm.utility, t.field) / hours for t in TERMS}
    return ArmFact(
        label=arm.arm.label,
        gpu_kind=arm.arm.gpu_kind,
        precision=arm.arm.precision,
        usd_per_h=arm.usd_per_h,
        tokens_per_s=arm.targets[_VALUE_TARGET].q50,
        total_usd=arm.utility.total_usd / hours,
        supported=arm.support.supported,
        terms=terms,
    )


def _fan(
    advisor: Advisor, found: Recommendation, request: ServingRequest, now_s: float
) -> list[FanPoint]:
    """Throughput of the best arm along the load."""
    best = found.ranked[0].arm
    points = []
    for load in _LOADS:
        question = Question(
            replace(request, concurrency=load), gpus=(best.gpu_kind,),
            precisions=(best.precision,), now_s=now_s, ask_starts=False,
        )  # fmt: skip
        ranked = advisor.advise(question).recommendation.ranked
        arm = next((a for a in ranked if a.arm.tensor_parallel == best.tensor_parallel), None)
        if arm is not None:
            p = arm.targets[_VALUE_TARGET]
            points.append(FanPoint(float(load), p.lower, p.q10, p.q50, p.q90, p.upper))
    return points

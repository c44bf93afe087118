"""What is at stake in a decision, for the gate: utilities, joint errors, the menu, its prices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.advisor.arm_sheet import scenario_of
from omnipilot.costmodel.envelope import AXES
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.heads import HEADS
from omnipilot.decide.economics import for_request
from omnipilot.decide.normals import cumulative
from omnipilot.decide.probes import Expense, Load, Probe, RejectedProbe, expense, usable
from omnipilot.decide.sampling import Z90
from omnipilot.decide.stakes import Quantity, Stakes
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics
    from omnipilot.decide.economics import Economics
    from omnipilot.domain import RankedArm

    FloatArray = NDArray[np.float64]

_TTFT, _TPOT, _COLD, _KV = "ttft_p50_s", "tpot_p50_s", "cold_start_s", "kv_cache_peak_frac"
# Share of the variance of a target without a learned head that all arms of a site have in common:
# a cold start is mostly the site's storage, the rest is the arm's own. A choice.
_SHARED_FRAC: Final = 0.5
_LEAST_WORTH_USD: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ProbeOption:
    """One probe on one arm: index into the advice's ranking, the load, and what it takes."""

    probe: Probe
    arm: int
    load: Load
    num_prompts: int
    expense: Expense


@dataclass(frozen=True, slots=True)
class Situation:
    """The gate's question with the words for its answer.

    ``options`` (m,) are the probes of ``stakes``; ``rejected`` are left out with the reason.
    """

    stakes: Stakes
    options: tuple[ProbeOption, ...]
    rejected: tuple[RejectedProbe, ...]


def situation(
    advisor: Advisor, advice: Advice, model: FittedModel, menu: Sequence[Probe]
) -> Situation:
    """Put a decision before the gate.

    Args:
        advisor: the site.
        advice: with at least one ranked arm.
        model: the cost model behind the advice, with floors.
        menu: the probes.
    """
    worths = _Worths(advisor, advice)
    probes, rejected = usable(menu, worths.decisive)
    request = advice.recommendation.request
    ranked = advice.recommendation.ranked
    own = Load(request.concurrency, request.prompt_tokens, request.output_tokens)
    loads = list(dict.fromkeys((own, *(probe.load(request) for probe in probes))))
    frame = build_frame(
        [
            replace(
                scenario_of(advisor, r.arm, request, advice.model),
                concurrency=float(load.concurrency), prompt_tokens=float(load.prompt_tokens),
                output_tokens=float(load.output_tokens),
            )
            for load in loads for r in ranked
        ]
    )  # fmt: skip
    prior = model.physics.evaluate(frame)
    options, places = [], []
    rate = np.exp(prior.log["request_per_s"])
    for probe in probes:
        at = loads.index(probe.load(request))
        for i, arm in enumerate(ranked):
            place = at * len(ranked) + i
            node = advice.gpus_per_node[arm.arm.gpu_kind]
            options.append(_option(advisor, probe, arm, i, loads[at], float(rate[place]), node))
            places.append(place)
    stakes = _stakes(advice, model, frame, prior, worths, options, np.array(places, dtype=np.int64))
    return Situation(stakes, tuple(options), rejected)


def _option(
    advisor: Advisor,
    probe: Probe,
    ranked: RankedArm,
    index: int,
    load: Load,
    request_per_s: float,
    gpus_per_node: int,
) -> ProbeOption:
    arm = ranked.arm
    gpu = advisor.catalog.gpu(arm.gpu_kind)
    site = advisor.settings
    seconds = probe.seconds(load, request_per_s, ranked.targets[_COLD].q50)
    taken = expense(
        seconds, arm.tensor_parallel, gpus_per_node, site.price_usd_per_gpu_h(gpu),
        ranked.targets["power_mean_w"].q50, site.pue * site.electricity_usd_per_kwh,
    )  # fmt: skip
    return ProbeOption(probe, index, load, probe.requests(load, request_per_s), taken)


class _Worths:
    """The parts of each arm's utility by the target that moves them, (n,) each."""

    def __init__(self, advisor: Advisor, advice: Advice) -> None:
        ranked = advice.recommendation.ranked
        request, weights = advice.recommendation.request, advice.weights
        self.economics: Economics = for_request(advice.economics, request)
        terms = [r.utility for r in ranked]
        prices = np.array(
            [
                advisor.settings.price_usd_per_gpu_h(advisor.catalog.gpu(r.arm.gpu_kind))
                * r.arm.tensor_parallel
                for r in ranked
            ]
        )
        hours = self.economics.duration_h
        serving = np.array([t.serving_value_usd for t in terms])
        saturated = weights.kv_saturation * np.array([t.kv_saturation_usd for t in terms])
        energy = np.array([t.compute_usd for t in terms]) - hours * prices
        carbon = np.array([t.carbon_usd for t in terms])
        self.worth_usd = {
            "throughput": weights.serving_value * serving - saturated,
            "power": -(weights.compute * np.maximum(energy, 0.0) + weights.carbon * carbon),
            _COLD: -weights.failure * self._restart_usd(advice),
        }
        # All or nothing: the cache is full and costs the floor's share, or it is not.
        self.full_usd = weights.kv_saturation * serving * (1.0 - self.economics.kv_floor)
        self.full_prob = np.clip(saturated / np.maximum(self.full_usd, _LEAST_WORTH_USD), 0.0, 1.0)
        self.limits: dict[str, FloatArray] = {
            name: np.array([_missed(r, name, limit) for r in ranked])
            for name, limit in (
                (_TTFT, self.economics.ttft_limit_s),
                (_TPOT, self.economics.tpot_limit_s),
            )
            if limit is not None
        }
        self.penalty_usd = weights.slo * self.economics.slo_penalty_usd_per_h * hours

    def _restart_usd(self, advice: Advice) -> FloatArray:
        """The part of the failure term that is proportional to the cold start."""
        found = []
        for r in advice.recommendation.ranked:
            outlook = advice.cluster.arms.get(r.arm) if advice.cluster else None
            failure = 1.0 - (outlook.chance.probability if outlook else 1.0)
            wait_h = outlook.wait.expected_h if outlook else 0.0
            rate = r.utility.compute_usd / self.economics.duration_h
            rate += self.economics.wait_cost_usd_per_h
            rest = self.economics.lost_setup_h * rate
            rest += wait_h * self.economics.wait_cost_usd_per_h
            found.append(max(r.utility.failure_usd - failure * rest, 0.0))
        return np.array(found)

    @property
    def decisive(self) -> frozenset[str]:
        """Targets that move any arm's utility."""
        moved = {
            name for name, worth in self.worth_usd.items()
            if np.any(np.abs(worth) > _LEAST_WORTH_USD)
        }  # fmt: skip
        heads = {h.name: h for h in HEADS}
        found = {t for name in moved if name in heads for t in heads[name].targets}
        found |= moved - set(heads)
        if self.penalty_usd > 0:
            found |= set(self.limits)
        if np.any((self.full_prob > 0) & (self.full_prob < 1)):
            found.add(_KV)
        return frozenset(found)


def _missed(ranked: RankedArm, name: str, limit_s: float) -> float:
    """Probability that the arm's median latency is over its limit: two-piece lognormal."""
    target = ranked.targets[name]
    distance = float(np.log(limit_s / max(target.q50, 1e-12)))
    far = target.upper if distance > 0 else target.lower
    sd = abs(float(np.log(max(far, 1e-12) / max(target.q50, 1e-12)))) / Z90
    return float(cumulative(np.array([-distance / max(sd, 1e-9)]))[0])


def _stakes(
    advice: Advice,
    model: FittedModel,
    frame: Frame,
    prior: Physics,
    worths: _Worths,
    options: Sequence[ProbeOption],
    place: NDArray[np.int64],
) -> Stakes:
    recommendation = advice.recommendation
    ranked = recommendation.ranked
    n = len(ranked)
    quantities = []
    for head in HEADS:
        worth = worths.worth_usd.get(head.name, np.zeros(n))
        missed = worths.limits.get(head.lead) if worths.penalty_usd > 0 else None
        if head.name not in model.heads or not (np.any(worth) or missed is not None):
            continue
        joint = model.joint(frame, prior, head.name)
        noise = [
            joint.noise_sd[p] ** 2 + _added_var(o.probe, head.targets)
            for o, p in zip(options, place.tolist(), strict=True)
        ]
        quantities.append(
            Quantity(
                head.name, np.diag(joint.covariance)[:n].copy(), joint.covariance[:n],
                joint.covariance, np.array(noise), worth, missed,
            )
        )  # fmt: skip
    quantities += [
        _by_prior_alone(name, ranked, frame.n, options, worths)
        for name in (_COLD, _KV)
        if name in worths.decisive
    ]
    total = np.array([r.utility.total_usd for r in ranked])
    supported = np.array([r.support.supported for r in ranked])
    abstention = recommendation.abstention
    chosen = 0
    if abstention is not None:
        chosen = next((i for i, r in enumerate(ranked) if r.arm == abstention.fallback), 0)
        allowed = np.arange(n) == chosen
    else:
        allowed = supported | (np.arange(n) == chosen)
    outside = covers = None
    if not supported.all():
        measures = np.array([bool(_serving(o.probe)) for o in options])
        outside, covers = _axes(model, frame, n, place, measures)
    return Stakes(
        tuple(quantities), total, np.zeros(n, dtype=np.int64), np.array([chosen]), allowed,
        place % n, place,
        np.array([o.expense.cost_usd for o in options]),
        np.array([o.expense.node_h for o in options]),
        worths.penalty_usd, outside, covers,
    )  # fmt: skip


def _added_var(probe: Probe, targets: Sequence[str]) -> float:
    """Variance that a probe adds to a whole benchmark's; infinite where it measures none."""
    return min((probe.measures[t] ** 2 for t in targets if t in probe.measures), default=np.inf)


def _serving(probe: Probe) -> list[str]:
    """The rates that a probe measures: only a row with one of them widens the support."""
    return [t for t in HEADS[0].targets if t in probe.measures]


def _by_prior_alone(
    name: str,
    ranked: Sequence[RankedArm],
    n_places: int,
    options: Sequence[ProbeOption],
    worths: _Worths,
) -> Quantity:
    """A target without a learned head: one error of the site and one of each arm."""
    points = [r.targets[name] for r in ranked]
    sd = np.array([np.log(max(p.q50, 1e-12) / max(p.lower, 1e-12)) / Z90 for p in points])
    own = np.arange(n_places) % len(ranked)
    alike = _SHARED_FRAC + (1.0 - _SHARED_FRAC) * (own[:, None] == own[None, :])
    covariance = sd[own][:, None] * sd[own][None, :] * alike
    noise = np.array([_added_var(o.probe, (name,)) for o in options])
    zero = np.zeros(len(ranked))
    full = name == _KV
    return Quantity(
        name, sd**2, covariance[: len(ranked)], covariance, noise,
        worths.worth_usd.get(name, zero),
        worths.full_prob if full else None, worths.full_usd if full else None,
    )  # fmt: skip


def _axes(
    model: FittedModel,
    frame: Frame,
    n_arms: int,
    place: NDArray[np.int64],
    measures: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Axes on which arms are out (n_axes, n); those a row of each probe covers (n_axes, m, n)."""
    envelope = model.envelope
    outside, covers = [], []
    for axis in AXES:
        if axis.category:
            known = set(envelope.levels[axis.name])
            code = frame.codes[axis.category]
            new = np.array([level not in known for level in frame.levels[axis.category]])
            out = new[code[:n_arms]]
            cover = code[place][:, None] == code[:n_arms][None, :]
        else:
            value = (
                frame["prompt_tokens"] + frame["output_tokens"]
                if axis.column == "context"
                else frame[axis.column]
            )
            low, high = envelope.ranges[axis.name]
            arms, there = value[:n_arms], value[place]
            above = arms > high * 1.001
            out = above | (arms < low * 0.999)
            cover = np.where(
                above[None, :],
                there[:, None] >= arms[None, :] * 0.999,
                there[:, None] <= arms[None, :] * 1.001,
            )
        outside.append(out)
        covers.append(cover & measures[:, None])
    return np.stack(outside), np.stack(covers)

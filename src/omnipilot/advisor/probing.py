"""The use case "probe": what is worth measuring before the decision, and what it would change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.advisor.answer_data import arm_data
from omnipilot.advisor.launching import LaunchOrder
from omnipilot.advisor.probe_stakes import situation
from omnipilot.advisor.words import usd
from omnipilot.costmodel.predict import CostModel
from omnipilot.decide.floors import with_floors
from omnipilot.decide.gate import GateSettings, plan_probes
from omnipilot.decide.probes import load_menu
from omnipilot.domain import BadInputError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.probe_stakes import ProbeOption, Situation
    from omnipilot.advisor.question import Advice, Question
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.decide.gate import PlannedProbe, ProbePlan
    from omnipilot.decide.probes import Probe
    from omnipilot.domain import Arm
    from omnipilot.launch.spec import Software

__all__ = ["ProbeReport", "probe", "probe_data", "probe_order", "probe_sentence", "stop_words"]

_LIKELY: Final = 0.02  # arms less likely to be taken afterwards are not listed
_HISTORY: Final = "history.jsonl"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the gate answers, beside the advice that it starts from.

    ``own_rows`` counts the site's own rows that the cost model was conditioned on.
    """

    question: Question
    advice: Advice
    situation: Situation
    plan: ProbePlan
    own_rows: int

    def option(self, planned: PlannedProbe) -> ProbeOption:
        """The probe, arm and load of a planned entry."""
        return self.situation.options[planned.probe]

    def arm(self, planned: PlannedProbe) -> Arm:
        """Arm of a planned entry."""
        return self.advice.recommendation.ranked[self.option(planned).arm].arm

    @property
    def now(self) -> Arm:
        """Arm that is taken without a probe."""
        return self.advice.recommendation.ranked[int(self.situation.stakes.taken[0])].arm


def probe(
    advisor: Advisor,
    question: Question,
    settings: GateSettings | None = None,
    menu: tuple[Probe, ...] | None = None,
) -> ProbeReport:
    """Decide what to measure before a request's decision.

    Rows of the site's own store count at once, also those that came since the last fit: in closed
    form.

    Args:
        advisor: the site.
        question: the request, as for advice.
        settings: of the gate.
        menu: the probes; the shipped menu where None.

    Raises:
        UsageError: as for advice; no arm starts.
        BundleError: no usable cost model.
    """
    model = advisor.model
    if not isinstance(model, CostModel):
        raise BadInputError("this cost model does not tell how its errors go together")
    fitted, own_rows = _informed(advisor, model.fitted)
    site = advisor.answering_by(replace(model, fitted=fitted))
    advice = site.advise(question)
    if not advice.recommendation.ranked:
        reason = advice.recommendation.abstention
        raise BadInputError(f"nothing to probe: {reason.reason if reason else 'no arm starts'}")
    found = situation(site, advice, fitted, menu or load_menu())
    return ProbeReport(question, advice, found, plan_probes(found.stakes, settings), own_rows)


def _informed(advisor: Advisor, fitted: FittedModel) -> tuple[FittedModel, int]:
    """The model with floors after the site's rows of today, and how many these are.

    They are the rows that ``omnipilot fit`` would learn from, those that came since included, by
    the same weights and without what was withheld.
    """
    if not (advisor.home / _HISTORY).exists():
        return with_floors(fitted), 0
    from omnipilot.advisor.learning_rows import site_set  # noqa: PLC0415 - most sites ask without rows
    from omnipilot.learn.registry import Registry  # noqa: PLC0415 - same

    rows = site_set(advisor, fitted, Registry(advisor.home).ledger.entries(), {})
    used = np.flatnonzero(rows.weight > 0.0)
    if len(used) == 0:
        return with_floors(fitted), 0
    data = rows.data.take(used)
    base = with_floors(replace(fitted, local={}))
    return base.condition(data.frame, data.labels, data.weight, data.cells), len(used)


def probe_order(
    report: ProbeReport, planned: PlannedProbe, software: Software, **job: Any  # noqa: ANN401
) -> LaunchOrder:  # fmt: skip
    """The launch that makes a planned probe: the arm under the probe's load, ended after it.

    Args:
        report: what the gate answered.
        planned: one of its probes.
        software: where the engine comes from.
        job: what is asked of Slurm, as fields of :class:`LaunchOrder`.
    """
    option, arm = report.option(planned), report.arm(planned)
    request = replace(
        report.advice.recommendation.request,
        concurrency=option.load.concurrency,
        prompt_tokens=option.load.prompt_tokens,
        output_tokens=option.load.output_tokens,
    )
    return LaunchOrder(
        question=replace(report.question, request=request),
        arm=arm.key,
        bench=True,
        num_prompts=option.num_prompts,
        stop_after_bench=True,
        software=software,
        **job,
    )


def stop_words(report: ProbeReport) -> str:
    """Why the gate stops, with the value of what it leaves out: "reason: words"."""
    plan = report.plan
    words = {
        "menu_exhausted": "no probe is left that measures anything the decision depends on",
        "depth_reached": f"{len(plan.probes)} probes are planned, as far as the gate looks ahead",
        "budget": "no further probe fits into the budget of node-hours",
    }.get(plan.stop, "")
    left = plan.rejected
    if left is not None:
        option, arm = report.option(left), report.arm(left)
        words = (
            f"the best {'further ' if plan.probes else ''}probe, {option.probe.name} on "
            f"{arm.label}, is worth {usd(left.voi_usd)} USD and costs {usd(left.cost_usd)} USD"
        )
    return f"{plan.stop}: {words}"


def probe_sentence(report: ProbeReport) -> str:
    """Whether a probe pays, with the first one, in a sentence."""
    plan = report.plan
    if not plan.probes:
        return f"No probe pays: {stop_words(report).partition(': ')[2]}."
    first = plan.probes[0]
    more = len(plan.probes) - 1
    others = {0: "", 1: " and another one"}.get(more, f" and {more} others")
    what = f"{report.option(first).probe.name} on {report.arm(first).label}{others}"
    return (
        f"A probe would pay: {what}, worth {usd(plan.gain_usd)} USD for {usd(plan.cost_usd)} USD; "
        "omnipilot probe plans and makes it."
    )


def probe_data(report: ProbeReport) -> dict[str, Any]:
    """The answer as data; see docs/commands.md.

    ``probes`` are those to make, in order, then the best one that does not pay (``net_usd`` below
    0, or ``voi_usd`` below the threshold), if there is one.
    """
    plan, stakes = report.plan, report.situation.stakes
    ranked = report.advice.recommendation.ranked
    now_usd = float(stakes.total_usd[stakes.taken[0]])
    listed = [*plan.probes, *([plan.rejected] if plan.rejected else [])]
    abstention = report.advice.recommendation.abstention
    likely = sorted(
        (i for i, p in enumerate(plan.wins) if p >= _LIKELY), key=lambda i: -plan.wins[i]
    )
    return {
        "probes": [
            {
                "probe": report.option(p).probe.name,
                "arm": arm_data(report.arm(p)),
                "voi_usd": p.voi_usd,
                "cost_usd": p.cost_usd,
                "net_usd": p.net_usd,
                "node_hours": p.node_h,
            }
            for p in listed
        ],
        "stop_reason": stop_words(report),
        "decision_before": {
            "arm": arm_data(report.now),
            "utility_usd": now_usd,
            "rule": abstention.fallback_rule if abstention else "expected-utility",
        },
        "decision_after_expected": {
            "utility_usd": now_usd + plan.gain_usd,
            "net_utility_usd": now_usd + plan.gain_usd - plan.cost_usd,
            "arms": [
                {"arm": arm_data(ranked[i].arm), "probability": float(plan.wins[i])} for i in likely
            ],
        },
    }

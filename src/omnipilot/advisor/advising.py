"""The use case "advise": model → arms → what starts → predictions → utility → rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, overload

import numpy as np

from omnipilot.advisor.arm_sheet import sheet_of
from omnipilot.advisor.asked_release import asked_release
from omnipilot.advisor.engine import model_option, parameters_of, with_whole_probe
from omnipilot.advisor.outlook import Outlook
from omnipilot.advisor.placing import costs_of, no_place, place
from omnipilot.advisor.question import Advice
from omnipilot.advisor.site_runs import site_runs
from omnipilot.advisor.words import queue_sentence
from omnipilot.catalog.engines import engine_name
from omnipilot.decide.candidate import Candidate, Columns
from omnipilot.decide.economics import Economics
from omnipilot.decide.fallback import FALLBACK_RULE
from omnipilot.decide.profiles import apply_profile
from omnipilot.decide.rank import recommend
from omnipilot.decide.refusal import nothing_fits
from omnipilot.decide.sampling import SAMPLED_TARGETS
from omnipilot.domain import Abstention

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.arm_sheet import ArmSheet
    from omnipilot.advisor.placing import Placed
    from omnipilot.advisor.predictor import Predictions
    from omnipilot.advisor.question import Question
    from omnipilot.decide.economics import ArmCosts
    from omnipilot.domain import GpuSpec, Recommendation, ServingRequest

# Fields of a question that replace a setting of the site.
_OVERRIDES: Final = ("electricity_usd_per_kwh", "wait_cost_usd_per_h", "slo_penalty_usd_per_h")


def advise(advisor: Advisor, question: Question, top: int | None = None) -> Advice:
    """Answer one question; see :meth:`omnipilot.advisor.Advisor.advise`."""
    model = advisor.resolve_model(
        question.request.model_id, question.model_config, allow_fetch=question.allow_fetch
    )
    engine = engine_name(question.request.engine)
    release = asked_release(question.request.engine_version, engine)
    request = question.request
    if (request.model_id, request.engine) != (model.model_id, engine):
        request = replace(request, model_id=model.model_id, engine=engine)
    site = advisor.settings
    outlook = Outlook(advisor.cluster(question), request, site.launch_success_prob)
    gpus = _gpus(advisor, question, outlook)
    economics, weights = apply_profile(
        question.profile,
        _economics(advisor, question, request),
        value_per_token_usd=question.value_per_token_usd,
        weights=question.weights,
    )
    node_gpus = {gpu.kind: outlook.now.gpus_per_node(gpu, site) for gpu in gpus}
    sheet = sheet_of(
        advisor, request, model, gpus, node_gpus,
        [advisor.catalog.precision(p).name for p in question.precisions],
    )  # fmt: skip
    predictions = _predictions(advisor, sheet, request)

    def ranking(placed: Placed) -> Recommendation:
        candidates, columns = _compared(sheet, predictions, placed, question)
        return recommend(
            request, candidates, (*sheet.cannot, *placed.homeless), economics, weights,
            model_version=advisor.model.version, columns=columns, top=top,
            parameters=lambda arm: parameters_of(sheet, arm, request.concurrency),
            model_option=model_option(question.model_config, question.request.model_id),
        )  # fmt: skip

    placed = place(outlook, sheet)
    recommendation = ranking(placed)
    if question.ask_starts:
        first = [placed.arms[r.arm] for r in recommendation.ranked]
        if outlook.ask(first):
            placed = place(outlook, sheet)
            recommendation = ranking(placed)
    if not recommendation.ranked and placed.homeless:
        recommendation = replace(recommendation, abstention=no_place(placed.homeless))
    elif not recommendation.ranked:
        reason = nothing_fits(
            model.model_id, sheet.refused, sheet.memory_gib, request.context_tokens
        )
        recommendation = replace(
            recommendation, abstention=Abstention(reason, (), FALLBACK_RULE, None)
        )
    unnamed = None if question.request.model_id else question.model_config
    recommendation = with_whole_probe(recommendation, sheet, unnamed)
    return Advice(
        recommendation=recommendation,
        model=model,
        economics=economics,
        weights=weights,
        prices_usd_per_gpu_h=sheet.prices_usd_per_gpu_h,
        gpus_per_node=node_gpus,
        assumptions=(
            *_assumptions(advisor, recommendation, economics, gpus, placed),
            *((f"{release.note}.",) if release.note else ()),
        ),
        site_runs=site_runs(advisor, model),
        cluster=outlook.report(placed.arms),
    )


def _predictions(advisor: Advisor, sheet: ArmSheet, request: ServingRequest) -> Predictions | None:
    """What the cost model says of the arms that start; None where there is none."""
    if not sheet.starting:
        return None
    return advisor.model.predict(
        sheet.scenarios.under(
            prompt_tokens=float(request.prompt_tokens),
            output_tokens=float(request.output_tokens),
            concurrency=float(request.concurrency),
            max_model_len=request.context_tokens,
        )
    )


class _Candidates(Sequence[Candidate]):
    """Some of the arms of a sheet; each is made when it is looked at."""

    def __init__(
        self, sheet: ArmSheet, rows: Sequence[int], predictions: Predictions, costs: ArmCosts
    ) -> None:
        self._sheet = sheet
        self._rows = rows
        self._predictions = predictions
        self._costs = costs

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._rows[index]
        arm, fit = self._sheet.starting[row]
        return Candidate(
            arm=arm,
            fit=fit,
            targets=self._predictions.targets(row),
            support=self._predictions.support[row],
            price_usd_per_gpu_h=self._sheet.prices_usd_per_gpu_h[arm.gpu_kind],
            wait_h=self._costs.wait_h.item(index),
            launch_success=self._costs.launch_success.item(index),
        )


def _compared(
    sheet: ArmSheet, predictions: Predictions | None, placed: Placed, question: Question
) -> tuple[Sequence[Candidate], Columns | None]:
    """The arms to compare, one by one and as columns.

    They have the waits and chances that an earlier advice had, where that is asked again.
    """
    rows, costs = placed.rows, placed.costs
    if question.given:
        labels = {i: sheet.starting[i][0].label for i in rows}
        rows = tuple(i for i in rows if labels[i] in question.given)
        costs = costs_of(sheet, rows, [question.given[labels[i]] for i in rows])
    if predictions is None or not rows:
        return (), None
    values, flags = predictions.values, predictions.supported
    if len(rows) < len(sheet.starting):
        values = {name: values[name][list(rows)] for name in SAMPLED_TARGETS}
        flags = [flags[i] for i in rows]
    supported = np.array(flags, dtype=bool)
    return _Candidates(sheet, rows, predictions, costs), Columns(values, costs, supported)


def _gpus(advisor: Advisor, question: Question, outlook: Outlook) -> tuple[GpuSpec, ...]:
    """The named kinds in any spelling, else those the site chose or the cluster has."""
    site = advisor.settings
    names = question.gpus
    if not names and not site.gpu_kinds_chosen:
        names = outlook.kinds()
    names = names or site.site_gpu_kinds(advisor.catalog.site_gpu_kinds())
    found = {spec.kind: spec for spec in map(advisor.catalog.gpu, names)}
    return tuple(found.values())


def _economics(advisor: Advisor, question: Question, request: ServingRequest) -> Economics:
    site = advisor.settings
    economics = Economics(
        duration_h=request.duration_h,
        value_per_token_usd=site.value_usd_per_token,
        pue=site.pue,
        electricity_usd_per_kwh=site.electricity_usd_per_kwh,
        carbon_kg_per_kwh=site.carbon_intensity_kg_per_kwh,
        carbon_usd_per_kg=site.carbon_price_usd_per_kg,
        wait_cost_usd_per_h=site.wait_cost_usd_per_h,
        slo_penalty_usd_per_h=site.slo_penalty_usd_per_h,
        lost_setup_h=site.lost_setup_h,
        kv_knee_frac=site.kv_knee_frac,
        kv_floor=site.kv_floor_frac,
        ttft_limit_s=request.slo.ttft_p50_s,
        tpot_limit_s=request.slo.tpot_p50_s,
    )
    said = {name: getattr(question, name) for name in _OVERRIDES}
    known = {name: v for name, v in said.items() if v is not None}
    return replace(economics, **known) if known else economics


def _assumptions(
    advisor: Advisor,
    recommendation: Recommendation,
    economics: Economics,
    gpus: tuple[GpuSpec, ...],
    placed: Placed,
) -> tuple[str, ...]:
    request = recommendation.request
    site = advisor.settings
    sentences = [
        (
            f"Prompt {request.prompt_tokens:,} and output {request.output_tokens:,} tokens a "
            "request; where not given the prompt takes 3/4 of the context."
        ),
        (
            f"A token is worth {economics.value_per_token_usd:.2g} USD; "
            f"{_launch_words(recommendation, placed)}."
        ),
    ]
    shown = {arm.arm.gpu_kind for arm in recommendation.ranked[:10]}
    prices = ", ".join(
        f"{gpu.kind} {site.price_usd_per_gpu_h(gpu):.2f}"
        + (" (estimated)" if site.price_is_estimated(gpu) else "")
        for gpu in gpus
        if gpu.kind in shown
    )
    if prices:
        sentences.append(f"USD per GPU-hour: {prices}.")
    if recommendation.ranked:
        prior = [n for n, t in recommendation.ranked[0].targets.items() if t.source == "prior"]
        if prior:
            sentences.append(
                f"From the physics prior alone, with wide intervals: {', '.join(prior)}."
            )
    queued = queue_sentence(request, recommendation.ranked[:10])
    if queued:
        sentences.append(queued)
    return tuple(sentences)


def _launch_words(recommendation: Recommendation, placed: Placed) -> str:
    """Chance and wait of the best arm, and what they rest on."""
    if not recommendation.ranked:
        return "no arm can be launched"
    best = placed.arms[recommendation.ranked[0].arm]
    return (
        f"a launch of the best arm comes up with probability {best.chance.probability:.2f} "
        f"({best.chance.note}) after {best.wait.expected_h:.1f} h in the queue ({best.wait.note})"
    )

"""The use case "advise": model → arms → what starts → predictions → utility → rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.engine import fit_question, verdict_of, with_engine_parameters
from omnipilot.advisor.fitting import default_utilization_frac
from omnipilot.advisor.outlook import Outlook
from omnipilot.advisor.placing import no_place, place
from omnipilot.advisor.question import Advice
from omnipilot.advisor.site_runs import site_runs
from omnipilot.advisor.turning import price_turning_points, value_turning_points
from omnipilot.catalog.engines import engine_name, parse_engine_version
from omnipilot.decide.arms import enumerate_arms
from omnipilot.decide.candidate import Candidate
from omnipilot.decide.economics import Economics
from omnipilot.decide.fallback import FALLBACK_RULE
from omnipilot.decide.profiles import apply_profile
from omnipilot.decide.rank import recommend
from omnipilot.decide.refusal import nothing_fits
from omnipilot.domain import (
    TARGET_NAMES,
    Abstention,
    Arm,
    FitVerdict,
    InfeasibleArm,
    RankedArm,
    Recommendation,
    Scenario,
)

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.placing import Placed
    from omnipilot.advisor.question import Question
    from omnipilot.domain import GpuSpec, ModelArch, ServingRequest

# Fields of a question that replace a setting of the site.
_OVERRIDES: Final = ("electricity_usd_per_kwh", "wait_cost_usd_per_h", "slo_penalty_usd_per_h")


def advise(advisor: Advisor, question: Question) -> Advice:
    """Answer one question; see :meth:`omnipilot.advisor.Advisor.advise`."""
    model = advisor.resolve_model(
        question.request.model_id, question.model_config, allow_fetch=question.allow_fetch
    )
    engine = engine_name(question.request.engine)
    request = replace(question.request, model_id=model.model_id, engine=engine)
    outlook = Outlook(advisor.cluster(question), request, advisor.settings.launch_success_prob)
    gpus = _gpus(advisor, question, outlook)
    economics, weights = apply_profile(
        question.profile,
        _economics(advisor, question, request),
        value_per_token_usd=question.value_per_token_usd,
        weights=question.weights,
    )
    by_kind = {gpu.kind: gpu for gpu in gpus}
    arms = enumerate_arms(
        model,
        gpus,
        lambda kind: outlook.gpus_per_node(kind) or advisor.settings.gpus_per_node(by_kind[kind]),
        only_precisions=[advisor.catalog.precision(p).name for p in question.precisions],
        engine=engine,
        memory_utilization_frac=default_utilization_frac(engine, request.engine_version),
    )
    judged = [(arm, verdict_of(fit_question(advisor, arm, request, model))) for arm in arms.arms]
    refused = [(arm, fit) for arm, fit in judged if fit.verdict != "fits"]
    cannot = (
        *arms.ruled_out,
        *(InfeasibleArm(arm, fit.reason_code, fit.reason) for arm, fit in refused),
    )
    starting = _candidates(
        advisor, request, model, [(arm, fit) for arm, fit in judged if fit.verdict == "fits"]
    )

    def ranking(placed: Placed) -> Recommendation:
        return recommend(
            request,
            _as_given(placed.candidates, question),
            (*cannot, *placed.homeless),
            economics,
            weights,
            model_version=advisor.model.version,
        )

    placed = place(outlook, starting, by_kind)
    recommendation = ranking(placed)
    first = [placed.arms[r.arm] for r in recommendation.ranked]
    if question.ask_starts and outlook.ask(first):
        placed = place(outlook, starting, by_kind)
        recommendation = ranking(placed)
    if not recommendation.ranked and placed.homeless:
        recommendation = replace(recommendation, abstention=no_place(placed.homeless))
    elif not recommendation.ranked:
        memory = {gpu.kind: gpu.memory_gib for gpu in gpus}
        reason = nothing_fits(model.model_id, refused, memory, request.context_tokens)
        recommendation = replace(
            recommendation, abstention=Abstention(reason, (), FALLBACK_RULE, None)
        )
    recommendation = with_engine_parameters(advisor, recommendation, model)
    contenders = _contenders(recommendation)
    prices = {gpu.kind: advisor.settings.price_usd_per_gpu_h(gpu) for gpu in gpus}
    return Advice(
        recommendation=recommendation,
        model=model,
        economics=economics,
        weights=weights,
        assumptions=_assumptions(advisor, recommendation, economics, gpus, placed),
        turning_points=(
            *value_turning_points(contenders, economics.value_per_token_usd, weights),
            *price_turning_points(contenders, prices, economics.duration_h, weights),
        ),
        site_runs=site_runs(advisor, model),
        cluster=outlook.report(placed.arms),
    )


def _as_given(candidates: tuple[Candidate, ...], question: Question) -> tuple[Candidate, ...]:
    """Candidates with the waits and chances that an earlier advice had, where it is asked again."""
    if not question.given:
        return candidates
    return tuple(
        replace(c, wait_h=given[0], launch_success=given[1])
        for c in candidates
        for given in [question.given.get(c.arm.label)]
        if given is not None
    )


def scenario_of(advisor: Advisor, arm: Arm, request: ServingRequest, model: ModelArch) -> Scenario:
    """The question to the cost model that an arm of a request poses."""
    return Scenario(
        model=model,
        gpu=advisor.catalog.gpu(arm.gpu_kind),
        precision=advisor.catalog.precision(arm.precision),
        n_gpus=arm.tensor_parallel,
        prompt_tokens=float(request.prompt_tokens),
        output_tokens=float(request.output_tokens),
        concurrency=float(request.concurrency),
        mode="online",
        engine=arm.engine,
        engine_version=request.engine_version or _latest_version(arm.engine),
        memory_utilization_frac=arm.memory_utilization_frac,
        max_model_len=request.context_tokens,
    )


def _latest_version(engine: str) -> str:
    """The engine's newest known version: what a launch without a stated version runs."""
    return ".".join(str(part) for part in parse_engine_version("", engine).version)


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
    return replace(economics, **{name: v for name, v in said.items() if v is not None})


def _candidates(
    advisor: Advisor,
    request: ServingRequest,
    model: ModelArch,
    starting: list[tuple[Arm, FitVerdict]],
) -> list[Candidate]:
    if not starting:
        return []
    out = advisor.model.predict([scenario_of(advisor, arm, request, model) for arm, _ in starting])
    return [
        Candidate(
            arm=arm,
            fit=fit,
            targets={name: out.target_prediction(i, name) for name in TARGET_NAMES},
            support=out.support[i],
            price_usd_per_gpu_h=advisor.settings.price_usd_per_gpu_h(
                advisor.catalog.gpu(arm.gpu_kind)
            ),
        )
        for i, (arm, fit) in enumerate(starting)
    ]


def _contenders(recommendation: Recommendation) -> list[RankedArm]:
    """Arms that compete with the winner on equal terms: as well supported, and not ahead of it.

    An arm that is listed last because it was not measured may be worth more on paper.
    """
    ranked = recommendation.ranked
    if not ranked:
        return []
    best = ranked[0]
    return [
        arm
        for arm in ranked
        if (arm.support.supported or not best.support.supported)
        and arm.utility.total_usd <= best.utility.total_usd
    ]


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

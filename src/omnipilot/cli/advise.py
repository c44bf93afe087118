"""``omnipilot advise``: the ranked answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import check_model, format_option, request_options

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor import Advice, Question
    from omnipilot.advisor.probing import ProbeReport


def question_of(
    *,
    model_id: str,
    context_tokens: int,
    prompt_tokens: int | None,
    output_tokens: int | None,
    slo_ttft_ms: float | None,
    slo_tpot_ms: float | None,
    weights: tuple[tuple[str, float], ...],
    gpus: tuple[str, ...] | None,
    precisions: tuple[str, ...] | None,
    model_config: Path | None,
    allow_fetch: bool,
    profile: str | None,
    value_per_token: float | None,
    live: bool = False,
    state_file: Path | None = None,
    **request: Any,  # noqa: ANN401 - concurrency, hours, engine and its version, as they are
) -> Question:
    """The question that the shared request options spell."""
    from omnipilot.advisor import Question  # noqa: PLC0415 - keeps --help quick
    from omnipilot.catalog.models import config_path  # noqa: PLC0415 - same
    from omnipilot.domain import ServingRequest, Slo  # noqa: PLC0415 - same

    check_model(model_id, model_config)
    if model_config is None and (path := config_path(model_id)) is not None:
        model_id, model_config = "", path
    prompt, output = ServingRequest.with_lengths(context_tokens, prompt_tokens, output_tokens)
    return Question(
        request=ServingRequest(
            model_id=model_id,
            context_tokens=context_tokens,
            prompt_tokens=prompt,
            output_tokens=output,
            slo=Slo(
                ttft_p50_s=None if slo_ttft_ms is None else slo_ttft_ms / 1e3,
                tpot_p50_s=None if slo_tpot_ms is None else slo_tpot_ms / 1e3,
            ),
            **request,
        ),
        model_config=model_config,
        allow_fetch=allow_fetch,
        gpus=gpus or (),
        precisions=precisions or (),
        profile=profile,
        weights=dict(weights),
        value_per_token_usd=value_per_token,
        live=live,
        state_file=state_file,
        now_s=time.time(),
    )


@click.command()
@request_options
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="Arms that the table shows; JSON and CSV hold all.")  # fmt: skip
@click.option(
    "--probe",
    "ask_probe",
    is_flag=True,
    help="Say too whether a short measurement first would pay; takes a moment more.",
)
@format_option("table", "json", "csv")
def advise(
    home: Path | None,
    top: int,
    ask_probe: bool,
    form: str,
    **options: Any,  # noqa: ANN401 - the request's
) -> int:  # fmt: skip
    """Rank GPU kind, tensor parallel and precision for a model and a load.

    Each arm that starts gets its predicted throughput and latencies with 80 % intervals, its
    price and its utility; each that cannot start gets the reason. Exit code 3 means that no arm
    is inside what was measured (a rule answers instead) or that none starts.

    \b
    Example:
      omnipilot advise --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096
      omnipilot advise --model meta-llama/Llama-3.1-70B-Instruct --concurrency 64 \\
        --context 8192 --gpus h100-80,a100-80 --slo-ttft-ms 1000 --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.decisions import remember  # noqa: PLC0415 - same

    advisor, question = Advisor.open(home), question_of(**options)
    advice = advisor.advise(question)
    decision = remember(advisor, question, advice)
    report = None
    if ask_probe and advice.recommendation.ranked:
        from omnipilot.advisor.probing import probe  # noqa: PLC0415 - only where asked

        report = probe(advisor, question)
    if form == "table":
        _emit(advice, top)
        _emit_probe(report)
        emit_decision(decision, advice.recommendation.model_version)
    else:
        _emit_data(advice, form, decision, report)
    return exits.OK if advice.recommendation.abstention is None else exits.ABSTAINED


def _emit(advice: Advice, top: int) -> None:
    from omnipilot.cli import advice_table as table  # noqa: PLC0415 - only this form renders

    table.emit_answer(advice)
    if advice.recommendation.ranked:
        table.emit_ranking(advice, top)
        table.emit_engine(advice)
    table.emit_cluster(advice, top=3)
    table.emit_infeasible(advice.recommendation.infeasible)
    table.emit_basis(advice)


def _emit_probe(report: ProbeReport | None) -> None:
    """Say whether a probe would pay, in a sentence."""
    if report is None:
        return
    from omnipilot.advisor.probing import probe_sentence  # noqa: PLC0415 - only where asked
    from omnipilot.cli.output import emit_heading, emit_lines  # noqa: PLC0415 - same

    emit_heading("Measuring first")
    emit_lines([probe_sentence(report)])


def emit_decision(decision: str, version: str) -> None:
    """Say under which name the recommendation is kept, if it is."""
    if decision:
        click.echo(
            f"Decision {decision} by cost model {version}; "
            f"omnipilot explain --replay {decision} shows it again."
        )


def _emit_data(advice: Advice, form: str, decision: str, report: ProbeReport | None) -> None:
    from omnipilot.advisor.answer_data import advice_data  # noqa: PLC0415 - only these need it
    from omnipilot.cli.advice_csv import CSV_HEADER, csv_rows  # noqa: PLC0415 - same
    from omnipilot.cli.output import emit_csv, emit_json  # noqa: PLC0415 - same

    if form == "json":
        data = {**advice_data(advice), **({"decision_id": decision} if decision else {})}
        if report is not None:
            from omnipilot.advisor.probing import probe_data  # noqa: PLC0415 - only where asked

            data["probe"] = probe_data(report)
        emit_json(data)
    else:
        emit_csv(CSV_HEADER, csv_rows(advice.recommendation))

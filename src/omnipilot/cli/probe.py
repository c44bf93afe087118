"""``omnipilot probe``: what is worth measuring first."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.advise import question_of
from omnipilot.cli.launch_options import (
    job_options,
    job_request_fields,
    software_of,
    software_options,
    way_option,
)
from omnipilot.cli.options import NOT_NEGATIVE, POSITIVE, format_option, request_options, stack

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.probing import ProbeReport
    from omnipilot.advisor.question import Question
    from omnipilot.decide.gate import GateSettings, PlannedProbe

gate_options = stack(
    click.option("--budget-node-h", type=POSITIVE, default=0.2, show_default=True,
                 help="Node-hours that the probes may take; a node-hour is one of all its GPUs."),
    click.option("--depth", type=click.IntRange(1, 3), default=3, show_default=True,
                 help="Probes that the gate looks ahead."),
    click.option("--epsilon", "epsilon_usd", type=NOT_NEGATIVE, default=0.05, show_default=True,
                 help="USD that a probe must promise at the least."),
    click.option("--samples", type=click.IntRange(32, 4096), default=32, show_default=True,
                 help="Fixed draws of what a probe may tell, for the search."),
)  # fmt: skip


@click.command()
@request_options
@gate_options
@way_option("--run", "Submit the first probe that pays to Slurm; its rows are taken in by the job.")
@way_option("--local", "Run it on this machine, take its rows in, and plan again with them.")
@click.option(
    "--checkpoint",
    default="",
    metavar="ID|PATH",
    help="What the engine loads where it is not the model's id.",
)
@software_options
@job_options
@format_option("table", "json")
def probe(
    home: Path | None,
    how: str,
    budget_node_h: float,
    depth: int,
    epsilon_usd: float,
    samples: int,
    checkpoint: str,
    form: str,
    **options: Any,  # noqa: ANN401 - the request's, the software's and the job's
) -> int:
    """Say which short measurements pay before the decision, and make them.

    Takes the options of advise. Each of six benchmarks is valued on each arm by how much better the
    best arm is expected to be once its result is known, less what it costs; up to three are planned
    together, because one alone may not pay. Runs of the site's store count at once. The value grows
    with --hours.

    \b
    Example:
      omnipilot probe --model Qwen/Qwen2.5-7B-Instruct --concurrency 1000 --context 4096 \\
        --hours 24 --gpus h100-80,h200-141 --format json
      omnipilot probe --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096 \\
        --hours 24 --run --image vllm.sif --partition gpu_h100
    """  # fmt: skip
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.probing import probe as ask  # noqa: PLC0415 - same
    from omnipilot.advisor.probing import probe_order  # noqa: PLC0415 - same
    from omnipilot.decide.gate import GateSettings  # noqa: PLC0415 - same

    software = software_of(options)
    job = job_request_fields(options)
    question = question_of(**options)
    settings = GateSettings(
        depth=depth, budget_node_h=budget_node_h, epsilon_usd=epsilon_usd, samples=samples,
        final_samples=max(samples, GateSettings().final_samples),
    )  # fmt: skip
    advisor = Advisor.open(home)
    report = ask(advisor, question, settings)
    if not how or not report.plan.probes:
        _emit(report, form)
        return exits.OK
    order = probe_order(
        report, report.plan.probes[0], software, checkpoint=checkpoint,
        ask_slurm=how == "run", **job,
    )  # fmt: skip
    return _make(advisor, report, order, how, question, settings, form)


def _make(
    advisor: Advisor,
    report: ProbeReport,
    order: Any,  # noqa: ANN401 - a LaunchOrder, whose module is imported below
    how: str,
    question: Question,
    settings: GateSettings,
    form: str,
) -> int:
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.launching import prepare_launch, save_launch  # noqa: PLC0415 - same
    from omnipilot.advisor.probing import probe as ask  # noqa: PLC0415 - same
    from omnipilot.cli.output import progress  # noqa: PLC0415 - same
    from omnipilot.launch.emit import outcome_of  # noqa: PLC0415 - same
    from omnipilot.launch.ingest import ingest_run  # noqa: PLC0415 - same
    from omnipilot.launch.local import run_script  # noqa: PLC0415 - same
    from omnipilot.launch.slurm import submit  # noqa: PLC0415 - same

    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    prepared = prepare_launch(advisor, order, run_id)
    for note in prepared.notes:
        progress(note)
    script = save_launch(prepared)
    run: dict[str, Any] = {"run_id": run_id, "folder": str(prepared.run_dir)}
    if how == "run":
        try:
            run["job_id"] = submit(script)
        except BaseException:
            progress(f"the script stays in {script}: sbatch {script} submits it later")
            raise
        _emit(report, form, run)
        return exits.OK
    code = run_script(script, prepared.run_dir, output=2)
    run["rows"] = ingest_run(advisor.home, prepared.run_dir, now_s=time.time()).total
    run["outcome"] = outcome_of(prepared.run_dir)
    updated = ask(Advisor.open(advisor.home), question, settings)
    _emit(report, form, run, updated)
    return exits.OK if code == 0 else exits.ERROR


def _emit(
    report: ProbeReport,
    form: str,
    run: dict[str, Any] | None = None,
    updated: ProbeReport | None = None,
) -> None:
    from omnipilot.advisor.answer_data import plain  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.probing import probe_data  # noqa: PLC0415 - same
    from omnipilot.cli.output import emit_heading, emit_json, emit_lines  # noqa: PLC0415 - same
    from omnipilot.launch.emit import outcome_words  # noqa: PLC0415 - same

    if form == "json":
        data = probe_data(report)
        if run is not None:
            data["run"] = run
        if updated is not None:
            data["updated"] = probe_data(updated)
        emit_json(plain(data))
        return
    _emit_plan(report)
    if run is not None:
        told = f"job {run['job_id']}" if "job_id" in run else outcome_words(run["outcome"])
        emit_heading("The first probe")
        emit_lines([f"{told}; its folder is {run['folder']}"])
    if updated is not None:
        emit_heading(f"With its {run['rows'] if run else 0} rows")
        _emit_plan(updated)


def _emit_plan(report: ProbeReport) -> None:
    from omnipilot.advisor.probing import stop_words  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.words import request_line, usd  # noqa: PLC0415 - same
    from omnipilot.cli.output import Column, emit_lines, emit_table  # noqa: PLC0415 - same

    plan, stakes = report.plan, report.situation.stakes
    now_usd = float(stakes.total_usd[stakes.taken[0]])
    emit_lines([request_line(report.advice.recommendation.request)], indent="")
    told = f" after {report.own_rows} rows of this site" if report.own_rows else ""
    answer = f"Without a probe{told}: {report.now.label}, expected utility {usd(now_usd)} USD."
    if plan.probes:
        after = now_usd + plan.gain_usd - plan.cost_usd
        many = f"{len(plan.probes)} probes" if len(plan.probes) > 1 else "one probe"
        answer += f" With {many}: {usd(after)} USD expected, their cost taken off."
    else:
        answer += " No probe pays."
    emit_lines([answer], indent="", bold=True)

    def cells(number: str, p: PlannedProbe) -> list[str]:
        load = report.option(p).load
        return [
            number, report.option(p).probe.name, report.arm(p).label,
            f"{load.concurrency:,} × {load.prompt_tokens:,}+{load.output_tokens:,}",
            usd(p.voi_usd), usd(p.cost_usd), usd(p.net_usd), f"{p.node_h:.3f}",
        ]  # fmt: skip

    rows = [cells(str(i), p) for i, p in enumerate(plan.probes, start=1)]
    rows += [cells("not", plan.rejected)] if plan.rejected else []
    if rows:
        emit_table(
            [Column("#", number=True), Column("probe"), Column("arm", narrow=True), Column("load"),
             *(Column(name, number=True) for name in ("value", "cost", "net", "node-h"))],
            rows,
        )  # fmt: skip
    emit_lines([f"Stops here: {stop_words(report)}."], indent="")
    wins = [(w, i) for i, w in enumerate(plan.wins) if w >= 0.02]
    if plan.probes:
        ranked = report.advice.recommendation.ranked
        likely = ", ".join(f"{ranked[i].arm.label} {w:.0%}" for w, i in sorted(wins, reverse=True))
        emit_lines([f"What would be taken afterwards: {likely}."], indent="")
    emit_lines(f"{r.probe.name} left out: {r.reason}" for r in report.situation.rejected)

"""``omnipilot bench``: a grid of benchmarks, and the rows of finished runs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.launch_options import (
    job_options,
    job_request_fields,
    software_of,
    software_options,
)
from omnipilot.cli.options import (
    COUNT,
    EXISTING_FILE,
    POSITIVE,
    Names,
    format_option,
    home_option,
    live_options,
    stack,
)

if TYPE_CHECKING:
    from omnipilot.launch.bench import Progress
    from omnipilot.launch.plan import Plan


class Counts(click.ParamType[tuple[int, ...]]):
    """Comma-separated whole numbers of at least 1, without repetitions."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Split at commas and check each."""
        if isinstance(value, tuple):
            return value
        names = Names().convert(value, param, ctx)
        numbers = [COUNT.convert(name, param, ctx) for name in names]  # type: ignore[arg-type]
        return tuple(dict.fromkeys(map(int, numbers)))


class AxisValues(click.ParamType[tuple[str, tuple[str, ...]]]):
    """``NAME=V1,V2``: a further axis of the grid."""

    name = "NAME=V1,V2"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, ...]]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        name, equals, rest = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"'{value}' is not of the form NAME=V1,V2", param, ctx)
        return name.strip().replace("-", "_"), Names().convert(rest, param, ctx)


class Checkpoint(click.ParamType[tuple[str, str, str]]):
    """``MODEL:PRECISION=ID``: what the engine loads for a precision of a model."""

    name = "MODEL:PRECISION=ID"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, str]:
        """Split at the first equals sign and the last colon before it."""
        if isinstance(value, tuple):
            return value
        what, equals, checkpoint = str(value).partition("=")
        model, colon, precision = what.rpartition(":")
        if not (equals and colon and model and precision and checkpoint):
            self.fail(f"'{value}' is not of the form MODEL:PRECISION=ID", param, ctx)
        return model, precision, checkpoint


grid_options = stack(
    click.option("--models", type=Names(), required=True, help="Model ids, separated by commas."),
    click.option("--gpus", type=Names(), required=True, help="GPU kinds, separated by commas."),
    click.option("--tp", "tensor_parallel", type=Counts(), default="1", show_default=True,
                 help="Tensor-parallel degrees."),
    click.option("--precisions", type=Names(), default=None,
                 help="Precisions; those that a model is offered in if left out."),
    click.option("--concurrency", type=Counts(), required=True, help="Clients of the closed loop."),
    click.option("--context", "context_tokens", type=Counts(), required=True,
                 help="Longest requests in tokens; the prompt takes 3/4."),
    click.option("--axis", "further", type=AxisValues(), multiple=True,
                 help="A further axis, such as kv_dtype=auto,fp8; repeatable."),
    click.option("--checkpoint", "checkpoints", type=Checkpoint(), multiple=True,
                 help="What the engine loads for a precision of a model; repeatable."),
    click.option("--engine-version", default="", help="Version of vLLM; the newest known if left "
                                                      "out."),
    click.option("--bench-minutes", type=POSITIVE, default=2.0, show_default=True,
                 help="About how long one benchmark is to take."),
    click.option("--budget-node-h", type=POSITIVE, default=10.0, show_default=True,
                 help="Node-hours that the runs may take."),
    click.option("--max-gpus", type=COUNT, default=8, show_default=True,
                 help="GPUs in use at a time."),
)  # fmt: skip


@click.group(no_args_is_help=False)
def bench() -> None:
    """Plan and run a grid of benchmarks, and take its rows in.

    \b
    Example:
      omnipilot bench plan --models Qwen/Qwen2.5-7B-Instruct --gpus h100-80,a100-80 --tp 1,2 \\
        --concurrency 8,64 --context 2048,8192 --budget-node-h 4 --out grid.json
      omnipilot bench run grid.json
    """


@bench.command()
@grid_options
@software_options
@job_options
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The plan's file; its runs get folders beside it.",
)
@click.option("--replace", is_flag=True, help="Replace a plan that is there already.")
@live_options
@home_option
@format_option("table", "json")
def plan(
    home: Path | None,
    out: Path,
    replace: bool,
    live: bool,
    state_file: Path | None,
    form: str,
    **options: Any,  # noqa: ANN401 - the grid's, the software's and the job's
) -> int:
    """Turn a grid into a plan of runs.

    Left out, each with its reason, is what cannot start, what the store knows already, what needs
    a checkpoint and what the budget does not reach. The runs are ordered by what they tell for a
    node-hour. An axis for which the cost model has no feature is refused.

    \b
    Example:
      omnipilot bench plan --models Qwen/Qwen2.5-7B-Instruct --gpus h100-80,a100-80 --tp 1,2 \\
        --concurrency 8,64 --context 2048,8192 --budget-node-h 4 --out grid.json
    """  # fmt: skip
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.benching import plan_grid  # noqa: PLC0415 - same
    from omnipilot.domain import BadInputError  # noqa: PLC0415 - same
    from omnipilot.launch.grid import Grid  # noqa: PLC0415 - same
    from omnipilot.launch.plan import write_plan  # noqa: PLC0415 - same
    from omnipilot.launch.spec import JobRequest  # noqa: PLC0415 - same

    if out.exists() and not replace:
        raise BadInputError(f"{out} is there already: --replace overwrites it, or name another")
    software = software_of(options)
    job = job_request_fields(options)
    time_limit_min = job.pop("time_limit_min")
    advisor = Advisor.open(home)
    catalog = advisor.catalog
    further: tuple[tuple[str, tuple[str, ...]], ...] = options.pop("further")
    checkpoints: tuple[tuple[str, str, str], ...] = options.pop("checkpoints")
    found = plan_grid(
        advisor,
        Grid(
            further=dict(further),
            checkpoints={
                (model.model_id, catalog.model_precision(precision, model).name): checkpoint
                for name, precision, checkpoint in checkpoints
                for model in (catalog.model(name),)
            },
            precisions=options.pop("precisions") or (),
            bench_s=60 * options.pop("bench_minutes"),
            software=software,
            job=JobRequest(**job),
            time_limit_min=time_limit_min,
            **options,
        ),
        live=live,
        state_file=state_file,
        now_s=time.time(),
    )
    write_plan(out, found)
    _emit_plan(found, out, form)
    return exits.OK


def _emit_plan(found: Plan, out: Path, form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    why = Counter(skipped.why for skipped in found.skipped)
    node_h = sum(run.node_h for run in found.runs)
    if form == "json":
        output.emit_json({
            "plan": str(out), "runs": len(found.runs), "node_h": node_h, "skipped": dict(why),
            "order": [
                {"run_id": r.run_id, "model": r.spec.model_id, "arm": r.spec.arm.label,
                 "concurrency": r.spec.concurrency, "context_tokens": r.spec.context_tokens,
                 "node_h": r.node_h, "information": r.information}
                for r in found.runs
            ],
        })  # fmt: skip
        return
    click.echo(f"{len(found.runs)} runs of {node_h:.2f} node-hours in {out}")
    shown = found.runs[:10]
    if shown:
        output.emit_table(
            [output.Column("#", number=True), output.Column("model"),
             output.Column("arm", narrow=True), output.Column("clients", number=True),
             output.Column("context", number=True), output.Column("node-h", number=True),
             output.Column("variance/node-h", number=True)],
            [[str(i), r.spec.model_id, r.spec.arm.label, f"{r.spec.concurrency:,}",
              f"{r.spec.context_tokens:,}", output.number(r.node_h),
              output.number(r.information)] for i, r in enumerate(shown, start=1)],
        )  # fmt: skip
    if found.skipped:
        output.emit_heading(f"Left out ({len(found.skipped)})")
        examples = {s.why: s for s in reversed(found.skipped)}
        output.emit_lines(
            f"{name.replace('_', ' ')} ({n}): {examples[name].label}: {examples[name].reason}"
            for name, n in why.most_common()
        )


PLAN = click.argument("plan_file", type=EXISTING_FILE, metavar="PLAN")


@bench.command()
@PLAN
@click.option("--local", is_flag=True, help="Run on this machine, one at a time, without Slurm.")
@click.option(
    "--poll",
    "poll_s",
    type=POSITIVE,
    default=5.0,
    show_default=True,
    help="Seconds between two looks at the runs.",
)
@home_option
@format_option("table", "json", "csv")
def run(plan_file: Path, local: bool, poll_s: float, home: Path | None, form: str) -> int:
    """Carry out a plan, or go on with it.

    Runs are submitted to Slurm within the plan's limit of GPUs and its budget; as each ends, its
    rows are taken into the store. It may be killed at any moment: started again it goes on, and
    each run is made once. Exit code 1 means that some run was lost after three tries.

    \b
    Example:
      omnipilot bench run grid.json
    """
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.output import progress  # noqa: PLC0415 - same
    from omnipilot.launch.bench import run_plan  # noqa: PLC0415 - same
    from omnipilot.launch.ingest import ingest_run  # noqa: PLC0415 - same
    from omnipilot.launch.runners import LocalRunner, SlurmRunner  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    done = run_plan(
        plan_file.absolute(),
        LocalRunner() if local else SlurmRunner(Catalog.load(site)),
        lambda folder: ingest_run(site, folder, now_s=time.time()),
        sleep=time.sleep,
        progress=progress,
        most_at_once=1 if local else 0,
        poll_s=poll_s,
    )
    _emit_progress(done, form)
    return exits.ERROR if done.count("lost") else exits.OK


@bench.command()
@PLAN
@format_option("table", "json", "csv")
def status(plan_file: Path, form: str) -> int:
    """Show how far a plan is.

    \b
    Example:
      omnipilot bench status grid.json --format json
    """
    from omnipilot.launch.bench import plan_progress  # noqa: PLC0415 - keeps --help quick

    _emit_progress(plan_progress(plan_file.absolute()), form)
    return exits.OK


def _emit_progress(done: Progress, form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rows = [
        {"run_id": s.run.run_id, "model": s.run.spec.model_id, "arm": s.run.spec.arm.label,
         "concurrency": s.run.spec.concurrency, "context_tokens": s.run.spec.context_tokens,
         "state": s.state, "outcome": s.outcome, "tries": s.tries, "node_h": s.node_h,
         "taken": s.taken}
        for s in done.states
    ]  # fmt: skip
    if form == "json":
        output.emit_json({
            "runs": len(rows), "ended": done.count("ended"), "started": done.count("started"),
            "waiting": done.count("waiting"), "lost": done.count("lost"),
            "spent_node_h": done.spent_node_h, "budget_node_h": done.budget_node_h, "states": rows,
        })  # fmt: skip
    elif form == "csv":
        names = tuple(rows[0]) if rows else ("run_id",)
        output.emit_csv(names, [list(row.values()) for row in rows])
    else:
        click.echo(done.text)
        counts = Counter((str(r["state"]), str(r["outcome"])) for r in rows)
        output.emit_lines(
            f"{state}{f' ({outcome})' if outcome else ''}: {n}"
            for (state, outcome), n in counts.most_common()
        )


@bench.command()
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@home_option
@format_option("table", "json", "csv")
def ingest(places: tuple[Path, ...], home: Path | None, form: str) -> int:
    """Take the rows of finished launches and benchmarks into the store.

    PLACES are folders of runs, or folders that hold such; without any, all launches of the site
    that ended since the last time. A row that is stored already counts as a duplicate, so that
    doing it twice does no harm.

    \b
    Example:
      omnipilot bench ingest
      omnipilot bench ingest ~/grids/h100.runs --format json
    """
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick
    from omnipilot.launch.emit import is_done, outcome_of, outcome_words  # noqa: PLC0415 - same
    from omnipilot.launch.ingest import (  # noqa: PLC0415 - same
        TAKEN_NAME,
        find_runs,
        ingest_run,
        launches_folder,
    )
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    home = home or default_home()
    own = launches_folder(home)
    folders = list(find_runs(places or ([own] if own.is_dir() and any(own.iterdir()) else [])))
    rows: list[dict[str, Any]] = []
    for folder in folders:
        if not places and (folder / TAKEN_NAME).exists():
            continue
        if not is_done(folder) and not places:
            continue
        report = ingest_run(home, folder, now_s=time.time())
        # A grid's run has a folder for each try, a script that was run again one for each time.
        parts = ("try-", "earlier-")
        name = next(n for n in reversed(folder.parts) if not n.startswith(parts))
        rows.append({
            "run": name, "outcome": outcome_of(folder) or "not ended",
            "accepted": report.accepted, "duplicate": report.duplicate,
            "rejected": report.rejected, "reasons": [r.reason for r in report.rejections],
        })  # fmt: skip
    if form == "json":
        output.emit_json({"runs": rows})
    elif form == "csv":
        names = ("run", "outcome", "accepted", "duplicate", "rejected")
        output.emit_csv(names, [[row[name] for name in names] for row in rows])
    elif not rows:
        click.echo("No run has ended since the last time.")
    else:
        for row in rows:
            click.echo(
                f"{row['run']}: {outcome_words(row['outcome'])}; {row['accepted']} rows taken in, "
                f"{row['duplicate']} there already"
            )
            output.emit_lines(str(reason) for reason in row["reasons"])
    return exits.OK

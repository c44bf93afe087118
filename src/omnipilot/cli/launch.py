"""``omnipilot launch``: the advice as a job."""

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
from omnipilot.cli.options import COUNT, format_option, request_options, stack

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.launching import PreparedLaunch

how_option = stack(
    way_option("--dry-run", "Print the script and write nothing; this is what happens unasked."),
    way_option("--submit", "Submit the script to Slurm."),
    way_option("--local", "Run the same script on this machine, without Slurm."),
)


@click.command()
@request_options
@click.option(
    "--arm",
    default="",
    metavar="GPU:TP:PRECISION",
    help="Launch this arm, such as h100-80:2:fp8, instead of the advice's best.",
)
@click.option(
    "--anyway", is_flag=True, help="Launch the named arm though it is judged not to start."
)
@click.option(
    "--checkpoint",
    default="",
    metavar="ID|PATH",
    help="What the engine loads where it is not the model's id: a folder, or a quantised "
    "checkpoint.",
)
@how_option
@click.option(
    "--bench",
    is_flag=True,
    help="Run 'vllm bench serve' at the request's load once the server is ready.",
)
@click.option(
    "--num-prompts", type=COUNT, help="Requests of the benchmark; four a client if left out."
)
@click.option("--stop-after-bench", is_flag=True, help="End the server after the benchmark.")
@software_options
@job_options
@format_option("table", "json")
def launch(
    home: Path | None,
    how: str,
    arm: str,
    anyway: bool,
    checkpoint: str,
    bench: bool,
    num_prompts: int | None,
    stop_after_bench: bool,
    form: str,
    **options: Any,  # noqa: ANN401 - the request's, the software's and the job's
) -> int:
    """Write the advice as a job script; submit it or run it here.

    Takes the options of advise. The script starts the server, waits for its health, runs a
    benchmark where asked and leaves everything in a folder of the site, from which its rows are
    taken into the store: the next advice shows them. A launch that fails becomes a row with its
    class of failure. Exit code 1 means that a local launch failed.

    \b
    Example:
      omnipilot launch --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096
      omnipilot launch --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096 \\
        --arm h100-80:1:fp8 --submit --bench --image vllm.sif --partition gpu_h100
    """  # fmt: skip
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.launching import LaunchOrder, prepare_launch  # noqa: PLC0415 - same
    from omnipilot.cli.output import progress  # noqa: PLC0415 - same

    if stop_after_bench and not bench:
        raise click.UsageError("--stop-after-bench goes with --bench")
    software = software_of(options)
    job = job_request_fields(options)
    advisor = Advisor.open(home)
    order = LaunchOrder(
        question=question_of(**options), arm=arm, anyway=anyway, checkpoint=checkpoint,
        bench=bench, num_prompts=num_prompts or 0, stop_after_bench=stop_after_bench,
        software=software, ask_slurm=how != "local", **job,
    )  # fmt: skip
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    prepared = prepare_launch(advisor, order, run_id)
    for note in prepared.notes:
        progress(note)
    if how in ("", "dry-run"):
        _emit_script(prepared, form)
        return exits.OK
    return _start(advisor, prepared, how, form)


def _emit_script(prepared: PreparedLaunch, form: str) -> None:
    from omnipilot.cli.output import emit_json  # noqa: PLC0415 - keeps --help quick

    if form == "json":
        emit_json({**_data(prepared), "script": prepared.script})
    else:
        click.echo(prepared.script, nl=False)


def _data(prepared: PreparedLaunch) -> dict[str, Any]:
    spec = prepared.spec
    return {
        "run_id": spec.run_id,
        "folder": str(prepared.run_dir),
        "arm": {"gpu_kind": spec.arm.gpu_kind, "tensor_parallel": spec.arm.tensor_parallel,
                "precision": spec.arm.precision, "engine": spec.arm.engine},
        "partition": spec.job.partition,
        "time_limit_min": spec.job.time_limit_min,
        "notes": list(prepared.notes),
    }  # fmt: skip


def _start(advisor: Advisor, prepared: PreparedLaunch, how: str, form: str) -> int:
    from omnipilot.advisor.launching import save_launch  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.output import emit_json, progress  # noqa: PLC0415 - same
    from omnipilot.launch.emit import outcome_of, outcome_words  # noqa: PLC0415 - same
    from omnipilot.launch.ingest import ingest_run  # noqa: PLC0415 - same
    from omnipilot.launch.local import run_script  # noqa: PLC0415 - same
    from omnipilot.launch.slurm import submit  # noqa: PLC0415 - same

    script = save_launch(prepared)
    label = prepared.spec.arm.label
    if how == "submit":
        try:
            job_id = submit(script)
        except BaseException:
            progress(f"the script stays in {script}: sbatch {script} submits it later")
            raise
        if form == "json":
            emit_json({**_data(prepared), "job_id": job_id})
        else:
            click.echo(f"Submitted job {job_id}: {prepared.spec.model_id} on {label}")
            click.echo(f"Its folder is {prepared.run_dir}; job.out says where the server listens.")
        return exits.OK
    code = run_script(script, prepared.run_dir, output=2)
    # The script has taken its rows in already, unless it could not: each row is stored once.
    report = ingest_run(advisor.home, prepared.run_dir, now_s=time.time())
    outcome = outcome_of(prepared.run_dir)
    if form == "json":
        emit_json({**_data(prepared), "outcome": outcome, "rows": report.total})
    else:
        click.echo(f"{label}: {outcome_words(outcome)}; {report.total} rows in the store")
    return exits.OK if code == 0 else exits.ERROR

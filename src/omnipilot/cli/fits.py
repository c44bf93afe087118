"""``omnipilot fits``: will it start?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import (
    COUNT,
    MAX_GPUS,
    Number,
    check_model,
    format_option,
    home_option,
    model_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.domain import FitVerdict

GPU_COUNT = click.IntRange(min=1, max=MAX_GPUS)


@click.command()
@model_options
@click.option(
    "--gpu",
    required=True,
    metavar="KIND",
    help="GPU kind in any common spelling, such as h100-80 or 'NVIDIA H100 80GB HBM3'.",
)
@click.option(
    "--tp",
    "tensor_parallel",
    type=GPU_COUNT,
    default=1,
    show_default=True,
    help="Tensor parallel: GPUs that share each layer.",
)
@click.option(
    "--pp",
    "pipeline_parallel",
    type=GPU_COUNT,
    default=1,
    show_default=True,
    help="Pipeline parallel: stages that share the layers.",
)
@click.option("--precision", default="", help="Weight format; the checkpoint's own if left out.")
@click.option("--kv-dtype", default="auto", show_default=True, help="Format of the KV cache.")
@click.option(
    "--max-model-len", type=COUNT, help="Longest request in tokens; the model's own if left out."
)
@click.option(
    "--gpu-memory-utilization",
    type=Number(min=0, max=1, min_open=True),
    help="Share of GPU memory for the engine; its own default if left out.",
)
@click.option("--max-num-seqs", type=COUNT, help="Most sequences in one step.")
@click.option("--max-num-batched-tokens", type=COUNT, help="Most tokens in one step.")
@click.option("--enforce-eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--engine", default="vllm", show_default=True, help="Serving engine.")
@click.option("--engine-version", default="", help="Its version; the newest known if left out.")
@click.option(
    "--gpus-per-node", type=GPU_COUNT, help="GPUs of one node; the site's, else 8, if left out."
)
@home_option
@format_option("table", "json")
def fits(home: Path | None, form: str, **launch: Any) -> int:  # noqa: ANN401
    """Say whether a configuration starts, and why not.

    The verdict is fits, oom, unsupported or unknown, with the memory arithmetic of one GPU. The
    reason names the number that decides and what would make the launch start. The exit code is 0
    whatever the verdict.

    \b
    Example:
      omnipilot fits --model meta-llama/Llama-3.1-70B-Instruct --gpu h100-80 --tp 2 \\
        --precision fp8 --max-model-len 32768
    """  # fmt: skip
    from omnipilot.advisor import Advisor, Launch  # noqa: PLC0415 - keeps --help quick

    check_model(launch["model_id"], launch["model_config"])
    verdict = Advisor.open(home).fits(Launch(**launch))
    if form == "json":
        from omnipilot.cli.output import emit_json  # noqa: PLC0415 - keeps --help quick

        emit_json(dataclasses.asdict(verdict))
    else:
        emit_verdict(verdict)
    return exits.OK


def emit_verdict(verdict: FitVerdict) -> None:
    """Print a verdict for a person."""
    from omnipilot.advisor.words import fit_lines  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.output import emit_lines  # noqa: PLC0415 - same

    click.secho(f"{verdict.verdict} ({verdict.reason_code})", bold=True)
    emit_lines(fit_lines(verdict))

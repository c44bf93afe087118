"""Options shared by commands, each defined once."""

from __future__ import annotations

import math
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

MAX_TOKENS = 100_000_000
MAX_CONCURRENCY = 10_000_000
MAX_GPUS = 1024


class Number(click.FloatRange):
    """A finite number in a range; ``nan`` and ``inf`` are refused."""

    name = "number"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - the type that click passes
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Parse and check one value."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Names(click.ParamType[tuple[str, ...]]):
    """Comma-separated names, as a tuple without repetitions."""

    name = "names"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, ...]:
        """Split at commas; an empty list is refused."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",") if part.strip()))
        if not names:
            self.fail("name at least one, separated by commas", param, ctx)
        return names


class Weight(click.ParamType[tuple[str, float]]):
    """``TERM=W``: a utility term and its weight."""

    name = "TERM=W"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, float]:
        """Split at the equals sign; whether the term exists is the advisor's to say."""
        if isinstance(value, tuple):
            return value
        term, equals, weight = str(value).partition("=")
        if not equals or not term.strip():
            self.fail(f"'{value}' is not of the form TERM=W, such as slo=10", param, ctx)
        return term.strip(), Number(min=0).convert(weight, param, ctx)


COUNT = click.IntRange(min=1, max=MAX_TOKENS)
POSITIVE = Number(min=0, min_open=True)
NOT_NEGATIVE = Number(min=0)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_PATH = click.Path(exists=True, path_type=Path)


def stack(
    *decorators: Callable[[AnyFunction], AnyFunction],
) -> Callable[[AnyFunction], AnyFunction]:
    """Compose option decorators; the first one is listed first in the help."""
    return lambda function: reduce(lambda f, d: d(f), reversed(decorators), function)


def format_option(*forms: str, default: str | None = None) -> Callable[[AnyFunction], AnyFunction]:
    """``--format``; the first form is the default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=default or forms[0],
        show_default=True, help="Form of the answer.",
    )  # fmt: skip


home_option = click.option(
    "--home", type=click.Path(file_okay=False, path_type=Path), envvar="OMNIPILOT_HOME",
    help="The site's folder (settings, GPU kinds, runs, bundles); OMNIPILOT_HOME sets it too.",
)  # fmt: skip

model_options = stack(
    click.option("--model", "model_id", metavar="ID", default="",
                 help="Hugging Face id, such as Qwen/Qwen2.5-7B-Instruct."),
    click.option("--model-config", type=EXISTING_PATH, metavar="PATH",
                 help="The model's config.json, or the folder that holds it."),
    click.option("--fetch", "allow_fetch", is_flag=True,
                 help="Fetch the config.json of an unknown model from the Hugging Face hub."),
)  # fmt: skip


def check_model(model_id: str, model_config: Path | None) -> None:
    """Refuse no model; where both are given the config describes what the id names: say so.

    Raises:
        click.UsageError: saying which option to give.
    """
    from omnipilot.cli.output import progress  # noqa: PLC0415 - keeps --help quick

    if not model_id and model_config is None:
        raise click.UsageError("say which model: --model ID, or --model-config PATH")
    if model_id and model_config is not None:
        progress(f"{model_id} is taken to be what {model_config} describes")


live_options = stack(
    click.option("--live/--no-live", "live", default=True, show_default=True,
                 envvar="OMNIPILOT_LIVE",
                 help="Ask Slurm how the cluster is now, where its programs are on PATH; "
                 "OMNIPILOT_LIVE=0 switches it off too."),
    click.option("--cluster-state", "state_file", type=EXISTING_FILE, metavar="FILE",
                 help="Take a saved state of the cluster instead of asking Slurm."),
)  # fmt: skip

request_options = stack(
    model_options,
    click.option("--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), required=True,
                 help="Requests in flight at the same time."),
    click.option("--context", "context_tokens", type=COUNT, required=True,
                 help="Longest request in tokens: prompt and output."),
    click.option("--prompt-tokens", type=COUNT,
                 help="Typical prompt; 3/4 of the context where left out."),
    click.option("--output-tokens", type=COUNT,
                 help="Typical output; the rest of the context where left out."),
    click.option("--hours", "duration_h", type=POSITIVE, default=1.0, show_default=True,
                 help="How long the server is to run."),
    click.option("--slo-ttft-ms", type=POSITIVE, help="Limit of the median time to first token."),
    click.option("--slo-tpot-ms", type=POSITIVE,
                 help="Limit of the median time per output token."),
    click.option("--gpus", type=Names(), default=None, help="Only these GPU kinds."),
    click.option("--precisions", type=Names(), default=None, help="Only these precisions."),
    click.option("--engine", default="vllm", show_default=True, help="Serving engine."),
    click.option("--engine-version", default="", help="Its version; the newest known if left out."),
    click.option("--value-per-token", type=NOT_NEGATIVE, metavar="USD",
                 help="What one served token is worth."),
    click.option("--profile", metavar="NAME",
                 help="Operating point, such as cost-conscious or latency-first."),
    click.option("--weight", "weights", type=Weight(), multiple=True,
                 help="Weight of one utility term; repeatable."),
    live_options,
    home_option,
)  # fmt: skip

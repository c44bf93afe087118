"""Options of commands that start servers: the software, and what is asked of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli.options import COUNT, stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.cli.options import AnyFunction
    from omnipilot.launch.spec import Software

_DAYS_MIN = 60 * 24 * 30


def way_option(flag: str, text: str) -> Callable[[AnyFunction], AnyFunction]:
    """One of the flags that set ``how``, "" without any; two of them are refused."""

    def choose(context: click.Context, _: click.Parameter, given: bool) -> None:
        other = context.params.setdefault("how", "")
        if given and other:
            raise click.UsageError(f"give --{other} or {flag}, not both")
        if given:
            context.params["how"] = flag.removeprefix("--")

    return click.option(flag, is_flag=True, expose_value=False, callback=choose, help=text)


class Setting(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``: a variable of the server's environment."""

    name = "NAME=VALUE"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"'{value}' is not of the form NAME=VALUE", param, ctx)
        return name, text


class Minutes(click.ParamType[int]):
    """A time as Slurm writes it: minutes, HH:MM:SS or D-HH:MM:SS."""

    name = "time"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Turn it into whole minutes, rounded up."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        days, dash, rest = text.rpartition("-")
        parts = rest.split(":")
        if not all(p.isdecimal() and len(p) < 9 for p in (*parts, *([days] if dash else []))):
            self.fail(f"'{value}' is no time: say minutes, HH:MM:SS or D-HH:MM:SS", param, ctx)
        numbers = [int(part) for part in parts]
        if dash:
            hours, minutes, seconds = (*numbers, 0, 0)[:3]
        elif len(numbers) == 3:
            hours, minutes, seconds = numbers
        else:
            hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
        total = 1440 * int(days or 0) + 60 * hours + minutes + (seconds > 0)
        if not 1 <= total <= _DAYS_MIN or len(numbers) > 3:
            self.fail(f"'{value}' is not between a minute and {_DAYS_MIN // 1440} days", param, ctx)
        return total


software_options = stack(
    click.option("--image", default="", metavar="PATH",
                 help="Apptainer or Singularity image that holds the engine."),
    click.option("--venv", default="", metavar="DIR",
                 help="Virtual environment that holds the engine."),
    click.option("--module", "modules", multiple=True, metavar="NAME",
                 help="Environment module to load first; repeatable."),
    click.option("--env", "environment", type=Setting(), multiple=True,
                 help="Variable of the server's environment; repeatable."),
    click.option("--engine-arg", "engine_arguments", multiple=True, metavar="TEXT",
                 help="Further argument of the engine, as --engine-arg=--trust-remote-code; "
                      "repeatable."),
)  # fmt: skip

job_options = stack(
    click.option("--partition", default="", help="Slurm partition; one that has the GPU kind if "
                                                 "left out."),
    click.option("--account", default="", help="Slurm account."),
    click.option("--qos", default="", help="Slurm quality of service."),
    click.option("--gres", default="", metavar="gpu:TYPE:N",
                 help="GPUs as Slurm names them; asked of sinfo if left out."),
    click.option("--time", "time_limit_min", type=Minutes(),
                 help="Time limit: minutes, HH:MM:SS or D-HH:MM:SS; from the prediction if left "
                      "out."),
    click.option("--cpus", type=COUNT, help="CPU cores; the site's default if left out."),
    click.option("--memory-gib", type=COUNT,
                 help="Main memory; the site's default if left out."),
)  # fmt: skip


def software_of(options: dict[str, Any]) -> Software:
    """Take the software's options out of the parsed ones.

    Raises:
        BadInputError: they contradict one another, or what is launched.
    """
    from pathlib import Path  # noqa: PLC0415 - keeps --help quick

    from omnipilot.launch.settings import check_arguments  # noqa: PLC0415 - same
    from omnipilot.launch.spec import Software  # noqa: PLC0415 - same

    def absolute(text: str) -> str:
        # The job starts in another folder; a registry address (docker://…) is no path.
        return str(Path(text).expanduser().absolute()) if text and "://" not in text else text

    check_arguments(options["engine_arguments"])
    return Software(
        image=absolute(options.pop("image")),
        venv=absolute(options.pop("venv")),
        modules=tuple(options.pop("modules")),
        environment=tuple(options.pop("environment")),
        arguments=tuple(options.pop("engine_arguments")),
    )


def job_request_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Take the job's options out of the parsed ones; 0 for what was left out."""
    texts = {name: options.pop(name) for name in ("partition", "account", "qos", "gres")}
    numbers = {name: options.pop(name) or 0 for name in ("time_limit_min", "cpus", "memory_gib")}
    return {**texts, **numbers}

"""``omnipilot models``: the cost models of a site and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.costmodel.predict import CostModel


@click.group(no_args_is_help=False)
def models() -> None:
    """Show the cost models that answer.

    \b
    Example:
      omnipilot models list
      omnipilot models show --physics
    """


def _bundles(home: Path | None) -> list[tuple[str, Path]]:
    """(name, folder) of the site's current bundle, where there is one, and of the shipped one."""
    from omnipilot.costmodel.bundle import base_model_path  # noqa: PLC0415 - keeps --help quick
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    own = (home or default_home()) / "bundles" / "current"
    found = [("site", own)] if own.exists() else []
    return [*found, ("base", base_model_path())]


def _load(folder: Path) -> CostModel:
    from omnipilot.costmodel.predict import CostModel  # noqa: PLC0415 - keeps --help quick

    return CostModel.load(folder)


@models.command("list")
@home_option
@format_option("table", "json", "csv")
def list_(home: Path | None, form: str) -> int:
    """List the cost models; the first one answers.

    \b
    Example:
      omnipilot models list --format json
    """
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rows = []
    for i, (name, folder) in enumerate(_bundles(home)):
        model = _load(folder)
        rows.append(
            {"name": name, "version": model.version, "rows": model.card["rows"],
             "sources": sorted(model.card["sources"]), "answers": i == 0}
        )  # fmt: skip
    if form == "json":
        output.emit_json({"models": rows})
    elif form == "csv":
        output.emit_csv(
            ("name", "version", "rows", "sources", "answers"),
            [(r["name"], r["version"], r["rows"], " ".join(r["sources"]), r["answers"])
             for r in rows],
        )  # fmt: skip
    else:
        output.emit_table(
            [output.Column("model"), output.Column("version"), output.Column("rows", number=True),
             output.Column("sources")],
            [[r["name"] + (" (answers)" if r["answers"] else ""), r["version"],
              f"{r['rows']:,}", ", ".join(r["sources"])] for r in rows],
        )  # fmt: skip
    return exits.OK


@models.command()
@click.option("--base", is_flag=True, help="Show the shipped model even where the site has one.")
@click.option("--physics", is_flag=True, help="Show the fitted parameters of the physics prior.")
@home_option
@format_option("table", "json")
def show(base: bool, physics: bool, home: Path | None, form: str) -> int:
    """Show what a cost model was fitted on, its held-out errors and its physics parameters.

    \b
    Example:
      omnipilot models show --physics
    """
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    name, folder = _bundles(home)[-1 if base else 0]
    model = _load(folder)
    document: dict[str, Any] = {"name": name, "version": model.version, **model.card}
    if physics:
        document["physics"] = _physics(model)
    if form == "json":
        output.emit_json(document)
        return exits.OK
    from omnipilot.learn.train import render_card  # noqa: PLC0415 - same

    click.echo(render_card(model.version, model.card), nl=False)
    if physics:
        _emit_physics(document["physics"])
    return exits.OK


def _physics(model: CostModel) -> list[dict[str, Any]]:
    """Each parameter: base value with unit, and the factor of every level that moves it."""
    import numpy as np  # noqa: PLC0415 - keeps --help quick

    from omnipilot.costmodel.physics import PARAMETERS  # noqa: PLC0415 - same

    fitted = model.fitted.physics
    return [
        {
            "name": p.name,
            "value": float(np.exp(fitted.base[j])),
            "unit": p.unit,
            "meaning": p.meaning,
            "factors": {
                category: {level: float(np.exp(v[j])) for level, v in levels.items()}
                for category, levels in fitted.offsets.items()
            },
        }
        for j, p in enumerate(PARAMETERS)
    ]


def _emit_physics(parameters: list[dict[str, Any]]) -> None:
    """The parameters, each with the levels that move it by more than a tenth."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    output.emit_heading("Physics prior: effective parameters, and factors of 10 % and more")
    rows = []
    for p in parameters:
        moved = sorted(
            ((abs(f - 1.0), f"{level} ×{f:.2f}")
             for levels in p["factors"].values() for level, f in levels.items()
             if not 0.9 < f < 1.1),
            reverse=True,
        )  # fmt: skip
        rows.append(
            [p["name"], f"{p['value']:.3g} {p['unit']}", p["meaning"],
             ", ".join(text for _, text in moved[:6])]
        )  # fmt: skip
    output.emit_table(
        [output.Column("parameter"), output.Column("value"), output.Column("meaning"),
         output.Column("largest factors")],
        rows,
    )  # fmt: skip

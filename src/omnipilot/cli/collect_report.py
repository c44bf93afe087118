"""What became of a harvest, as JSON, CSV or text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from omnipilot.cli import exits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.advisor.harvest import HarvestReport
    from omnipilot.domain.unknown_name import UnknownName

__all__ = ["emit_report", "emit_unknown_names", "exit_code"]

_SHOWN_NAMES: Final = 20


def exit_code(report: HarvestReport) -> int:
    """2 where nothing but refused records was found, else 0."""
    taken = report.accepted + report.duplicate + report.outside
    # A job that still runs, or whose start is still on its way, is no fault of the input.
    early = sum(report.by_reason.get(code, 0) for code in ("not ended", "not recorded whole"))
    faulty = report.rejected - early
    return exits.USAGE if faulty and not taken else exits.OK


def emit_unknown_names(names: Sequence[UnknownName]) -> None:
    """Tell on stderr which rows were kept though no fit can use them."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    for name in names[:_SHOWN_NAMES]:
        output.progress(name.text)
    if names:
        more = f" ({len(names) - _SHOWN_NAMES} more names)" if len(names) > _SHOWN_NAMES else ""
        output.progress(
            f"rows of such names are kept, and no fit learns from them{more}: correct the file and "
            "take it in again, or add the GPU kind or model to the site"
        )


def emit_report(report: HarvestReport, form: str) -> None:
    """Print a harvest's report in the form asked for."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rejections = [(origin, r.line, r.reason) for origin, r in report.rejections]
    emit_unknown_names(report.unknown_names)
    if form == "json":
        output.emit_json(
            {
                "collector": report.collector,
                "log": report.log,
                "accepted": report.accepted,
                "duplicate": report.duplicate,
                "rejected": report.rejected,
                "outside": report.outside,
                "by_reason": report.by_reason,
                "unknown_names": report.unknown_names,
                "rejections": [
                    {"file": origin, "line": line, "reason": reason}
                    for origin, line, reason in rejections
                ],
                "cluster": report.cluster,
                "covered_from_s": report.covered_from_s,
                "covered_until_s": report.covered_until_s,
            }
        )
        return
    if form == "csv":
        output.emit_csv(("file", "line", "reason"), rejections)
        return
    click.echo(
        f"{report.accepted:,} new, {report.duplicate:,} stored already, "
        f"{report.rejected:,} refused"
        + (f", {report.outside:,} outside the time or cluster asked for" if report.outside else "")
        + f"; in {report.log}"
    )
    if report.covered_until_s:
        click.echo(
            f"{report.cluster} is harvested from {_shown(report.covered_from_s)} "
            f"until {_shown(report.covered_until_s)}"
        )
    if report.by_reason:
        output.emit_heading("Refused, by reason")
        output.emit_lines(f"{reason}: {n:,}" for reason, n in report.by_reason.items())
        output.emit_heading("The first of them")
        output.emit_lines(
            f"{origin}, record {line}: {reason}" for origin, line, reason in rejections
        )


def _shown(when_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when_s))

"""Which rows of the site's store a refit learns from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.learn.local_rows import local_set, stored_runs
from omnipilot.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.ledger import Entry
    from omnipilot.learn.local_rows import LocalSet

__all__ = ["site_set", "withheld_rows"]


def site_set(
    advisor: Advisor, base: FittedModel, entries: list[Entry], retire: Mapping[str, float]
) -> LocalSet:
    """Read the site's rows as a refit takes them; without the ones that were withheld."""
    settings = advisor.settings
    return local_set(
        stored_runs(Store(advisor.home)),
        advisor.catalog,
        learned=frozenset(base.envelope.novelty["source"]),
        policy={**settings.retirement, **retire},
        window_s=settings.freshness_s["runs"],
        withheld=withheld_rows(entries),
    )


def withheld_rows(entries: list[Entry]) -> set[str]:
    """Hashes of the rows that an operator took out of further fits and has not let in again."""
    out: set[str] = set()
    for entry in entries:
        if entry.event == "withhold":
            out |= set(entry.facts["rows"])
        elif entry.event == "admit":
            out -= set(entry.facts["rows"])
    return out

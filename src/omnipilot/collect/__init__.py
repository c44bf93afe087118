"""Source texts turned into typed rows, one module a source.

Names are imported when first asked for: asking Slurm for the cluster's state reads no table.
"""

from typing import TYPE_CHECKING

from omnipilot.domain.on_demand import on_demand

if TYPE_CHECKING:
    from omnipilot.collect.base import COLLECTOR_BY_NAME, COLLECTORS, Collector, CollectorEntry
    from omnipilot.collect.csv_rows import (
        MEASUREMENTS,
        QUESTIONS,
        Use,
        collect_csv,
        find_tables,
        unread_columns,
    )
    from omnipilot.collect.records import Limits
else:
    __getattr__ = on_demand(
        __name__,
        {
            "base": ("COLLECTORS", "COLLECTOR_BY_NAME", "Collector", "CollectorEntry"),
            "csv_rows": (
                "MEASUREMENTS",
                "QUESTIONS",
                "Use",
                "collect_csv",
                "find_tables",
                "unread_columns",
            ),
            "records": ("Limits",),
        },
    )

__all__ = [
    "COLLECTORS", "COLLECTOR_BY_NAME", "MEASUREMENTS", "QUESTIONS", "Collector", "CollectorEntry",
    "Limits", "Use", "collect_csv", "find_tables", "unread_columns",
]  # fmt: skip

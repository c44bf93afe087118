"""Source texts turned into typed rows, one module a source."""

from omnipilot.collect.base import COLLECTOR_BY_NAME, COLLECTORS, Collector, CollectorEntry
from omnipilot.collect.csv_rows import MEASUREMENTS, QUESTIONS, Use, collect_csv, find_tables
from omnipilot.collect.records import Limits

__all__ = [
    "COLLECTORS", "COLLECTOR_BY_NAME", "MEASUREMENTS", "QUESTIONS", "Collector", "CollectorEntry",
    "Limits", "Use", "collect_csv", "find_tables",
]  # fmt: skip

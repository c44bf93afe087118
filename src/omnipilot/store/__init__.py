"""The site's rows: an append-only log, files taken into it, and the table learned from it."""

from omnipilot.store.codec import StoredRow
from omnipilot.store.dataset import (
    cell_key,
    cell_of,
    freshness_weights,
    is_usable,
    label_matrix,
    load_runs,
)
from omnipilot.store.ingest import ImportReport, StoreStats, import_file, import_items, stats
from omnipilot.store.log import CLUSTER_LOG_NAME, AppendReport, ReadTally, Store

__all__ = [
    "CLUSTER_LOG_NAME", "AppendReport", "ImportReport", "ReadTally", "Store", "StoreStats",
    "StoredRow", "cell_key", "cell_of", "freshness_weights", "import_file", "import_items",
    "is_usable", "label_matrix", "load_runs", "stats",
]  # fmt: skip

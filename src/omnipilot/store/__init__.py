"""The site's rows: an append-only log, files taken into it, and the table learned from it.

Names are imported when first asked for: a site without rows is answered without their codec.
"""

from typing import TYPE_CHECKING

from omnipilot.domain.on_demand import on_demand

if TYPE_CHECKING:
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
else:
    __getattr__ = on_demand(
        __name__,
        {
            "codec": ("StoredRow",),
            "dataset": ("cell_key", "cell_of", "freshness_weights", "is_usable", "label_matrix",
                        "load_runs"),
            "ingest": ("ImportReport", "StoreStats", "import_file", "import_items", "stats"),
            "log": ("CLUSTER_LOG_NAME", "AppendReport", "ReadTally", "Store"),
        },
    )  # fmt: skip

__all__ = [
    "CLUSTER_LOG_NAME", "AppendReport", "ImportReport", "ReadTally", "Store", "StoreStats",
    "StoredRow", "cell_key", "cell_of", "freshness_weights", "import_file", "import_items",
    "is_usable", "label_matrix", "load_runs", "stats",
]  # fmt: skip

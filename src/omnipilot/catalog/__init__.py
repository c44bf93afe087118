"""What is known about GPU kinds, precisions, models and engines, with the source of each fact."""

from omnipilot.catalog.catalog import Catalog
from omnipilot.catalog.precisions import KvDtype

__all__ = ["Catalog", "KvDtype"]

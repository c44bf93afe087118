"""The site's own measured rows as a training set, with its prices: what backtests are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.domain import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.learn.dataset import build_dataset, read_runs
from omnipilot.store import Store, load_runs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.learn.dataset import Dataset

# With fewer rows nothing is left to learn from once a fold is taken out (a head needs 15 labels).
FEWEST_ROWS: Final = 40


@dataclass(frozen=True, slots=True)
class SiteRows:
    """A site's rows and, where asked for, others to learn from.

    ``sources`` are those of the site's own rows; ``own`` how many of them are usable.
    """

    dataset: Dataset
    sources: tuple[str, ...]
    own: int


def site_rows(advisor: Advisor, others: Path | None = None) -> SiteRows:
    """Read the rows of the site's store.

    Args:
        advisor: the site.
        others: a folder of further measured rows, which are learned from and not tested.

    Raises:
        BadInputError: too few usable rows, or a file of ``others`` that cannot be read.
        StateError: the store cannot be read.
    """
    runs = load_runs(Store(advisor.home))
    sources = tuple(sorted({run.source for run in runs}))
    further = read_runs(others) if others is not None else []
    if not runs:
        raise BadInputError(
            f"{advisor.home} holds no measured run: import some with omnipilot data import"
        )
    dataset = build_dataset([*runs, *further], advisor.catalog)
    names = dataset.data.frame.category("source")
    own = sum(str(name) in sources for name in names)
    if own < FEWEST_ROWS:
        raise BadInputError(
            f"{advisor.home} holds {own} usable runs, too few to hold some out: "
            f"{FEWEST_ROWS} are needed"
        )
    return SiteRows(dataset, sources, own)


def site_prices(advisor: Advisor) -> Mapping[str, float]:
    """USD per GPU and hour of every kind of the catalogue, by the site's settings."""
    return {gpu.kind: advisor.settings.price_usd_per_gpu_h(gpu) for gpu in advisor.catalog.gpus()}

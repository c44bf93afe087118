"""The rows of a site's own store, made ready for conditioning a base model on them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import InferenceRun, LabelledRun
from omnipilot.learn.dataset import NoUsableRowError, build_dataset
from omnipilot.learn.retirement import Retirement, weigh
from omnipilot.store.dataset import run_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.catalog import Catalog
    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.learn.dataset import Dataset, Excluded
    from omnipilot.store import Store

__all__ = ["SITE", "LocalSet", "StoredRun", "local_set", "stored_runs"]

# A question of the site itself has no source (domain.Scenario); neither have its own rows, so that
# they answer it.
SITE: Final = ""


class StoredRun(NamedTuple):
    """One run of the store; ``row_hash`` names it whatever was joined to it since."""

    run: InferenceRun
    row_hash: str
    at_s: float


def stored_runs(store: Store) -> list[StoredRun]:
    """Read the runs of a store, each once, with the labels of its newest join.

    Raises:
        StateError: the store cannot be read.
    """
    found: dict[str, StoredRun] = {}
    for stored in store.rows():
        if isinstance(stored.row, InferenceRun):
            found.setdefault(
                stored.content_hash,
                StoredRun(stored.row, stored.content_hash, stored.ingested_at_s),
            )
        elif isinstance(stored.row, LabelledRun):
            key = stored.row.run_hash
            at_s = found[key].at_s if key in found else stored.ingested_at_s
            found[key] = StoredRun(run_of(stored.row), key, at_s)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class LocalSet:
    """A site's usable rows, as questions of the site itself.

    ``dataset`` is None without any; ``excluded`` counts runs that cannot be used, None where there
    was no run. ``hashes`` name its rows (n,), ``weight`` is what each counts
    (n,), 0 for retired ones; ``sources`` counts them by the source that they came with. ``learned``
    rows were left out because the base model has learned them, ``withheld`` on an operator's word.
    """

    dataset: Dataset | None
    hashes: NDArray[np.str_]
    retirement: Retirement
    sources: Mapping[str, int]
    excluded: Excluded | None
    learned: int = 0
    withheld: int = 0

    @property
    def n(self) -> int:
        """Usable rows, retired ones included."""
        return len(self.hashes)

    @property
    def excluded_counts(self) -> dict[str, int]:
        """Runs that cannot be used, by reason."""
        return self.excluded.counts if self.excluded else {}

    @property
    def weight(self) -> NDArray[np.float64]:
        """What each row counts (n,)."""
        return self.retirement.weight

    @property
    def data(self) -> TrainingSet:
        """The rows as arrays.

        Raises:
            BadInputError: there is none.
        """
        if self.dataset is None:
            raise BadInputError("the site holds no usable run")
        return self.dataset.data

    @property
    def digest(self) -> str:
        """SHA-256 of the rows' hashes, in any order."""
        return hashlib.sha256("\n".join(sorted(self.hashes.tolist())).encode()).hexdigest()


def local_set(
    stored: Sequence[StoredRun],
    catalog: Catalog,
    *,
    learned: Container[str],
    policy: Mapping[str, float],
    window_s: float,
    withheld: Container[str] = frozenset(),
) -> LocalSet:
    """Resolve, screen and weigh a site's runs.

    Args:
        stored: runs of the store.
        catalog: facts.
        learned: sources that the base model was fitted on; their rows would count twice.
        policy: weights of older software; see :func:`omnipilot.learn.retirement.weigh`.
        window_s: age at which a row counts half.
        withheld: hashes of rows that take no part.
    """
    own = [s for s in stored if s.run.source not in learned]
    used = [s for s in own if s.row_hash not in withheld]
    counts = {"learned": len(stored) - len(own), "withheld": len(own) - len(used)}
    runs = [replace(s.run, source=SITE) for s in used]
    about = {id(run): s for run, s in zip(runs, used, strict=True)}
    nothing = Retirement(np.zeros(0), ())
    if not runs:
        return LocalSet(None, np.zeros(0, dtype="<U64"), nothing, {}, None, **counts)
    try:
        dataset = build_dataset(runs, catalog)
    except NoUsableRowError as error:
        return LocalSet(None, np.zeros(0, dtype="<U64"), nothing, {}, error.excluded, **counts)
    kept = [about[id(run)] for run in dataset.runs]
    kinds = dataset.data.frame.category("gpu_kind").tolist()
    at_s = np.asarray([s.at_s for s in kept])
    retirement = weigh(dataset.runs, kinds, at_s, policy, window_s)
    data = replace(dataset.data, weight=retirement.weight)
    return LocalSet(
        replace(dataset, data=data),
        np.asarray([s.row_hash for s in kept]),
        retirement,
        dict(sorted(Counter(s.run.source for s in kept).items())),
        dataset.excluded,
        **counts,
    )

"""The cost models of a site, their ledger and their health, kept while nothing has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnipilot.store.log import LOG_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from omnipilot.learn.ledger import Entry
    from omnipilot.web.answering import Service
    from omnipilot.web.snapshot import Snapshot

__all__ = ["health", "ledger", "models"]


def models(service: Service, snapshot: Snapshot) -> Any:  # noqa: ANN401 - as it is kept
    """Every cost model, the one that answers first.

    Raises:
        StateError: the ledger or a bundle is damaged.
    """
    from omnipilot.advisor.learning_models import listed  # noqa: PLC0415 - seldom asked

    return _kept(service, snapshot, "models", lambda: listed(snapshot.advisor))


def ledger(service: Service, snapshot: Snapshot) -> list[Entry]:
    """The verified ledger, oldest entry first.

    Raises:
        StateError: it is damaged.
    """
    from omnipilot.advisor.learning_models import history  # noqa: PLC0415 - seldom asked

    found: list[Entry] = _kept(service, snapshot, "ledger", lambda: history(snapshot.advisor))
    return found


def health(service: Service, snapshot: Snapshot) -> Any:  # noqa: ANN401 - as it is kept
    """How the model that answers stands up to rows measured since.

    Raises:
        StateError: the ledger, the store or a bundle is damaged.
    """
    from omnipilot.advisor.learning_models import health as ask  # noqa: PLC0415 - seldom asked

    return _kept(service, snapshot, "health", lambda: ask(snapshot.advisor).data())


def _kept(service: Service, snapshot: Snapshot, what: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401
    """An answer, worked out again when the bundles, the ledger or the rows have changed."""
    home = snapshot.advisor.home
    key: tuple[Hashable, ...] = (
        what, snapshot.stamp, _size(home / "bundles" / "ledger.jsonl"), _size(home / LOG_NAME),
    )  # fmt: skip
    found = service.kept.get(key)
    if found is None:
        found = work()
        service.kept.put(key, found)
    return found


def _size(path: Any) -> int:  # noqa: ANN401 - a path
    try:
        return int(path.stat().st_size)
    except OSError:
        return 0

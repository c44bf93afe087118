"""The scheduler's GPU names as kinds of the catalogue, node by node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from omnipilot.decide.placement import NodeGpus
from omnipilot.domain import AmbiguousNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from omnipilot.catalog import Catalog
    from omnipilot.domain.cluster import ClusterState

__all__ = ["GpuNaming", "name_gpus"]

# "hbm40", "a100-80gb", "80g": a memory size in a node's feature.
_SIZE: Final = re.compile(r"(?<!\d)(\d{2,3})(?:gi?b?)?$", re.IGNORECASE)
_KIND_SIZE: Final = re.compile(r"-(\d+)")


class GpuNaming:
    """What a scheduler's name can mean, remembered.

    Args:
        catalog: the kinds there are.
        preferred: kinds that the site says it has; they settle a name that could be several.
    """

    def __init__(self, catalog: Catalog, preferred: Collection[str] = ()) -> None:
        self._catalog = catalog
        self._preferred = frozenset(preferred)
        self._known: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}

    def kinds(self, gpu: str, features: tuple[str, ...]) -> tuple[str, ...]:
        """Kinds that a name may mean on a node of these features; none where it says nothing."""
        key = (gpu, features)
        if key not in self._known:
            self._known[key] = self._kinds(gpu, features)
        return self._known[key]

    def _kinds(self, gpu: str, features: tuple[str, ...]) -> tuple[str, ...]:
        # A bare MIG profile, or no type at all: the part is among the node's features.
        texts = [gpu, *(f"{feature} {gpu}".strip() for feature in features)] if gpu else features
        found: tuple[str, ...] = ()
        for text in texts:
            named = self._candidates(text)
            if len(named) == 1:
                return named
            found = found or named
        sizes = {int(size[1]) for feature in features if (size := _SIZE.search(feature))}
        narrower = tuple(k for k in found if (n := _KIND_SIZE.search(k)) and int(n[1]) in sizes)
        return self._site(narrower or found)

    def _candidates(self, text: str) -> tuple[str, ...]:
        try:
            return (self._catalog.gpu(text).kind,)
        except AmbiguousNameError as error:
            return self._site(error.candidates)
        except UsageError:
            return ()

    def _site(self, kinds: Iterable[str]) -> tuple[str, ...]:
        kinds = tuple(kinds)
        return tuple(k for k in kinds if k in self._preferred) or kinds


def name_gpus(state: ClusterState, naming: GpuNaming) -> tuple[NodeGpus, ...]:
    """The GPUs of all nodes; those that no kind answers to are left out."""
    return tuple(
        NodeGpus(
            node=node.name,
            gpu=gpu.kind,
            kinds=kinds,
            total=gpu.total,
            free=0 if node.closed else gpu.free,
            partitions=node.partitions,
            closed=node.closed,
            reason=node.reason,
        )
        for node in state.nodes
        for gpu in node.gpus
        if gpu.total and (kinds := naming.kinds(gpu.kind, node.features))
    )

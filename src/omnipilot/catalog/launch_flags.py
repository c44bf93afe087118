"""What an engine must be told so that a launch comes up the first time.

The facts are in ``data/launch_flags.toml``, whose head explains every field.
"""

from __future__ import annotations

import tomllib
from dataclasses import field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnipilot.catalog.engines import Version, version_of
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch

__all__ = ["LaunchFlag", "launch_flags"]

_DATA: Final = Path(__file__).with_name("data") / "launch_flags.toml"


@dataclass(frozen=True, slots=True)
class LaunchFlag:
    """One known launch breaker with what avoids it; see ``launch_flags.toml``.

    An empty tuple, 0 or None asks nothing of that axis.
    """

    id: str
    engine: str
    why: str
    source: str
    since: Version = (0, 0, 0)
    until: Version = (9999, 0, 0)
    precisions: tuple[str, ...] = ()
    native: bool | None = None
    capability_below: float = 0.0
    capability_from: float = 0.0
    vendors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    gpus_from: int = 0
    mig: bool = False
    graphs_too_large: bool = False
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    needs: str = ""

    def matches(
        self,
        engine: str,
        version: Version,
        model: ModelArch,
        gpu: GpuSpec,
        precision: str,
        n_gpus: int,
        *,
        graphs_too_large: bool,
    ) -> bool:
        """Whether a launch meets this breaker."""
        capability = gpu.compute_capability
        bounded = self.capability_below or self.capability_from
        return (
            self.engine == engine
            and self.since <= version < self.until
            and (not self.precisions or precision in self.precisions)
            and (self.native is None or self.native == model.holds(precision))
            and (not bounded or capability > 0)
            and (not self.capability_below or capability < self.capability_below)
            and (not self.capability_from or capability >= self.capability_from)
            and (not self.vendors or gpu.vendor.lower() in self.vendors)
            and (not self.kinds or gpu.kind.startswith(self.kinds))
            and (not self.links or gpu.link.startswith(self.links))
            and (not self.families or model.family in self.families)
            and n_gpus >= self.gpus_from
            and (not self.mig or gpu.is_mig)
            and (not self.graphs_too_large or graphs_too_large)
        )


@lru_cache(maxsize=1)
def launch_flags() -> tuple[LaunchFlag, ...]:
    """The bundled flags in file order.

    Raises:
        ValueError: a field that is not known.
    """
    known = {f.name for f in fields(LaunchFlag)}
    flags = []
    for table in tomllib.loads(_DATA.read_text(encoding="utf-8"))["flag"]:
        row: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        for bound in ("since", "until"):
            if bound in row:
                row[bound] = version_of(row[bound])
        unknown = set(row) - known
        if unknown:
            raise ValueError(f"launch flag {row.get('id')}: unknown field {min(unknown)}")
        flags.append(LaunchFlag(**row))
    return tuple(flags)

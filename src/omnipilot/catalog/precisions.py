"""Number formats of weights and of the KV cache; the facts are in ``data/precisions.toml``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import AmbiguousNameError, UnknownNameError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.precision import PrecisionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA_FILE: Final = Path(__file__).with_name("data") / "precisions.toml"

_REMARK: Final = re.compile(r"\([^)]*\)")
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_ALTERNATIVES: Final = re.compile(r"[/+,]")


@dataclass(frozen=True, slots=True)
class KvDtype:
    """One number format of the KV cache.

    ``bytes_per_element`` includes scales. ``min_compute_capability`` is CUDA's; other vendors are
    not bound by it.
    """

    name: str
    bytes_per_element: float
    min_compute_capability: float
    source: str


@dataclass(frozen=True, slots=True)
class Precisions:
    """Both tables with their spellings.

    ``weights`` and ``kv`` go by canonical name; ``weight_names`` and ``kv_names`` map a spelling
    without case and separators to that name.
    """

    weights: Mapping[str, PrecisionSpec]
    kv: Mapping[str, KvDtype]
    weight_names: Mapping[str, str]
    kv_names: Mapping[str, str]

    def resolve(self, text: str) -> PrecisionSpec:
        """Find the weight format that a spelling means.

        A remark in parentheses is left out: "fp8 (on load)" is fp8.

        Raises:
            UnknownNameError: no format answers to it.
            AmbiguousNameError: it names two, as "fp8/nvfp4".

        Examples:
            >>> load_precisions().resolve("torch.bfloat16").name
            'bf16'
        """
        if text in self.weights:
            return self.weights[text]
        return self.weights[_find(text, self.weight_names, "precision", tuple(self.weights))]

    def resolve_kv(self, text: str) -> KvDtype:
        """Find the cache format that a spelling means; empty text is "auto".

        Raises:
            UnknownNameError: no format answers to it.
            AmbiguousNameError: it names two.
        """
        if text in self.kv:
            return self.kv[text]
        return self.kv[_find(text or "auto", self.kv_names, "KV-cache type", tuple(self.kv))]


def load_precisions() -> Precisions:
    """Read the bundled tables."""
    data = tomllib.loads(DATA_FILE.read_text(encoding="utf-8"))
    weights = {
        name: PrecisionSpec(
            name=name,
            bytes_per_param=table["bits"] / 8.0,
            effective_bits=table["bits"],
            compute=table["compute"],
            embeddings_16bit=table["embeddings_16bit"],
            group_size=table.get("group_size", 0),
            min_compute_capability=table["min_compute_capability"],
            source=table["source"],
            experts_only=table.get("experts_only", False),
        )
        for name, table in data["weights"].items()
    }
    kv = {
        name: KvDtype(
            name=name,
            bytes_per_element=table["bits"] / 8.0,
            min_compute_capability=table["min_compute_capability"],
            source=table["source"],
        )
        for name, table in data["kv"].items()
    }
    return Precisions(weights, kv, _spellings(data["weights"]), _spellings(data["kv"]))


def _spellings(tables: Mapping[str, Mapping[str, list[str]]]) -> dict[str, str]:
    return {
        _key(spelling): name
        for name, table in tables.items()
        for spelling in (name, *table["aliases"])
    }


def _key(text: str) -> str:
    return _SEPARATORS.sub("", text.lower())


def _find(text: str, names: Mapping[str, str], what: str, valid: tuple[str, ...]) -> str:
    bare = _REMARK.sub("", text)
    found = names.get(_key(bare))
    if found is not None:
        return found
    parts = [_key(part) for part in _ALTERNATIVES.split(bare)]
    several = dict.fromkeys(names[part] for part in parts if part in names)
    if len(several) == 1 and all(part in names for part in parts):
        return next(iter(several))
    if len(several) > 1:
        raise AmbiguousNameError(text, tuple(several))
    import difflib  # noqa: PLC0415 - only a refusal needs it

    near = difflib.get_close_matches(_key(bare)[:80], names, n=3, cutoff=0.6)
    raise UnknownNameError(
        f"no {what} '{text[:80]}': valid are {', '.join(valid)}",
        tuple(dict.fromkeys(names[n] for n in near)),
    )

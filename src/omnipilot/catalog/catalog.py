"""One door to the facts: GPU kinds, precisions and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.catalog.gpu_names import GpuNames
from omnipilot.catalog.gpus import GpuEntry, load_gpus
from omnipilot.catalog.precisions import KvDtype, Precisions, load_precisions
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec


@dataclass(frozen=True)
class Catalog:
    """The bundled facts with those of one site.

    Build it with :meth:`load`.

    Examples:
        >>> catalog = Catalog.load()
        >>> catalog.gpu("NVIDIA H100 80GB HBM3").kind
        'h100-80'
        >>> catalog.precision("bfloat16").bytes_per_param
        2.0
    """

    home: Path | None
    _entries: tuple[GpuEntry, ...]
    _names: GpuNames
    _precisions: Precisions

    @classmethod
    def load(cls, home: Path | None = None) -> Catalog:
        """Read the bundled tables and a site's own GPU kinds.

        Args:
            home: the site's folder; its ``gpus/*.toml`` add or correct kinds.

        Raises:
            BadInputError: a site file that cannot be read.
        """
        entries = load_gpus(home)
        return cls(home, entries, GpuNames(entries), load_precisions())

    def gpu(self, text: str, memory_gb: float | None = None) -> GpuSpec:
        """Find the GPU kind that any spelling means; see :class:`GpuNames`.

        Raises:
            UnknownNameError: no kind answers to it; the message names close ones.
            AmbiguousNameError: several do; ``candidates`` holds them.
            BadInputError: ``memory_gb`` is not positive.
        """
        return self._names.resolve(text, memory_gb)

    def gpus(self, *, include_mig: bool = True) -> tuple[GpuSpec, ...]:
        """All kinds, each followed by its MIG slices unless these are left out."""
        return tuple(e.spec for e in self._entries if include_mig or not e.spec.is_mig)

    def site_gpu_kinds(self) -> tuple[str, ...]:
        """Kinds that the site's own files add or correct, without MIG slices."""
        return tuple(e.spec.kind for e in self._entries if e.site and not e.spec.is_mig)

    def precision(self, text: str) -> PrecisionSpec:
        """Find the weight format that a spelling means.

        Raises:
            UnknownNameError: no format answers to it.
            AmbiguousNameError: it names several.
        """
        return self._precisions.resolve(text)

    def model_precision(self, text: str, model: ModelArch) -> PrecisionSpec:
        """Find the weight format that a spelling means of a model, as its rows are labelled.

        Raises:
            UnknownNameError: no format answers to it.
            AmbiguousNameError: it names several.

        Examples:
            >>> catalog = Catalog.load()
            >>> catalog.model_precision("fp8-block", catalog.model("deepseek-ai/DeepSeek-V3")).name
            'fp8'
        """
        return self._precisions.weights[model.named(self.precision(text).name)]

    def precisions(self) -> tuple[PrecisionSpec, ...]:
        """All weight formats."""
        return tuple(self._precisions.weights.values())

    def kv_dtype(self, text: str) -> KvDtype:
        """Find the cache format that a spelling means; empty text is "auto".

        Raises:
            UnknownNameError: no format answers to it.
            AmbiguousNameError: it names several.
        """
        return self._precisions.resolve_kv(text)

    def kv_dtypes(self) -> tuple[KvDtype, ...]:
        """All cache formats."""
        return tuple(self._precisions.kv.values())

    def model(
        self, text: str, config: Path | None = None, *, allow_fetch: bool = False
    ) -> ModelArch:
        """Find a model's structure by id, or read it from a Hugging Face ``config.json``.

        Args:
            text: model id or a common spelling of it.
            config: a ``config.json`` or the folder that holds it; it wins over the table.
            allow_fetch: fetch the config of an unknown id from the hub.

        Raises:
            UnknownNameError: no entry and no config.
            BadInputError: a config that cannot be read.
        """
        from omnipilot.catalog.models import resolve_model  # noqa: PLC0415 - GPUs need no models

        return resolve_model(text, config, self.home, allow_fetch=allow_fetch)

    def model_ids(self) -> tuple[str, ...]:
        """Ids of the bundled models."""
        from omnipilot.catalog.models import model_ids  # noqa: PLC0415 - as above

        return model_ids()

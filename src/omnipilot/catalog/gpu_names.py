"""One resolver for every spelling of a GPU kind.

A spelling is reduced to letters, digits and dots; case, spaces, hyphens and underscores do not
matter. If that equals a kind, a product name or an alias, it is that kind. Otherwise it is read as
chip, form and memory size in any order after the chip, with a MIG profile anywhere.
"""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import AmbiguousNameError, BadInputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from omnipilot.catalog.gpus import GpuEntry
    from omnipilot.domain.hardware import GpuSpec

# A stated size matches a kind within this share: 183 GB and 180 GB are both a B200.
SIZE_TOLERANCE_FRAC: Final = 0.02
_LONGEST_NAME: Final = 200
_MOST_READINGS: Final = 64

_IGNORED: Final = re.compile(r"\([^)]*\)|[®™]")
_RESOURCE: Final = re.compile(r"^(nvidia|amd)\.com/")
_GRES: Final = re.compile(r"^\s*(?:gres\s*[:=/]\s*)?gpu\s*[:=/]")
_GRES_COUNT: Final = re.compile(r"[:=]\s*\d+\s*$")
_TIMES: Final = re.compile(r"^\s*\d+\s*[x×]\s*(?=[a-z])")
_SEPARATORS: Final = re.compile(r"[^a-z0-9.]+")
_PROFILE: Final = re.compile(r"\.?(?:mig)?\.?(\d)g\.(\d+)gb(?:me)?")
_BRAND: Final = re.compile(
    r"^(?:virtualized|nvidia|geforce|tesla|quadro|rtx|amd|instinct|intelr?|habana|aws"
    r"|sambanova|datacenter|gpu)"
)
# What may follow the chip, as (pattern, form it names).
_WORDS: Final = (
    (re.compile(r"sxm[2-6]?"), "sxm"),
    (re.compile(r"sxm"), "sxm"),
    (re.compile(r"pcie?"), "pcie"),
    (re.compile(r"nvl"), "nvl"),
    (re.compile(r"oam"), "oam"),
    (re.compile(r"hbm[23]?e?|gddr[67]x?"), ""),
    (re.compile(r"grace|hopper|superchip|ada|blackwell|generation|server|edition|gpu|ac"), ""),
)
_SIZE: Final = re.compile(r"(\d+)(?:gib|gb|g)?")


def compact(text: str) -> str:
    """Reduce a spelling to lower-case letters, digits and dots."""
    return _SEPARATORS.sub("", text.lower())


def _unbranded(key: str) -> str:
    while (found := _BRAND.match(key)) and found.end() < len(key):
        key = key[found.end() :]
    return key


class GpuNames:
    """The spellings of a set of kinds."""

    def __init__(self, entries: Sequence[GpuEntry]) -> None:
        self._entries = tuple(entries)
        self._kinds = {entry.spec.kind: entry.spec for entry in entries}
        self._exact: dict[str, list[GpuEntry]] = {}
        self._by_chip: dict[str, list[GpuEntry]] = {}
        for entry in entries:
            names = (entry.spec.kind, entry.spec.name, *entry.aliases)
            for key in {_unbranded(compact(name)) for name in names}:
                self._exact.setdefault(key, []).append(entry)
            self._by_chip.setdefault(_unbranded(compact(entry.chip)), []).append(entry)
        self._chips = sorted(self._by_chip, key=len, reverse=True)

    def resolve(self, text: str, memory_gb: float | None = None) -> GpuSpec:
        """Find the kind that a spelling means.

        Args:
            text: any spelling: canonical kind, product name, Slurm GRES type, data-set spelling.
            memory_gb: memory size stated beside it, in GB or GiB; None where there is none.

        Raises:
            UnknownNameError: no kind answers to it, or none of that size or form exists.
            AmbiguousNameError: several kinds do.
            BadInputError: a memory size that is not a positive number.

        Examples:
            >>> from omnipilot.catalog.gpus import load_gpus
            >>> names = GpuNames(load_gpus())
            >>> names.resolve("gpu:nvidia_h100_80gb_hbm3:4").kind
            'h100-80'
            >>> names.resolve("A100", memory_gb=40).kind
            'a100-40'
        """
        if memory_gb is None and text in self._kinds:
            return self._kinds[text]  # an advice asks hundreds of times by canonical kind
        if memory_gb is not None and not (math.isfinite(memory_gb) and memory_gb > 0):
            raise BadInputError(f"the memory of GPU '{text}' must be above 0 GB, got {memory_gb}")
        lowered = _RESOURCE.sub("", _IGNORED.sub(" ", text[:_LONGEST_NAME].lower()).strip())
        if (gres := _GRES.match(lowered)) is not None:
            lowered = lowered[gres.end() :]
        lowered = _TIMES.sub("", _GRES_COUNT.sub("", lowered))
        if "/" in lowered:
            return self._one_of(text, lowered.split("/"), memory_gb)
        key = _unbranded(compact(lowered))
        if not key:
            raise UnknownNameError(f"'{text}' names no GPU kind; {_HOW_TO_ADD}")
        exact = self._exact.get(key, [])
        if exact:
            return _single(text, _of_size(text, exact, memory_gb))
        return self._read(text, key, memory_gb)

    def _one_of(self, text: str, parts: Iterable[str], memory_gb: float | None) -> GpuSpec:
        """Refuse "H100/H200" with what each side could be, unless both are one kind."""
        found: dict[str, GpuSpec] = {}
        for part in parts:
            try:
                spec = self.resolve(part, memory_gb)
                found[spec.kind] = spec
            except AmbiguousNameError as error:
                found.update({k: self.resolve(k) for k in error.candidates})
            except UnknownNameError:
                continue
        if not found:
            raise self._unknown(text, compact(text))
        if len(found) > 1:
            raise AmbiguousNameError(text, tuple(found))
        return next(iter(found.values()))

    def _read(self, text: str, key: str, memory_gb: float | None) -> GpuSpec:
        """Read a spelling as chip, form, size and MIG profile."""
        profile = ""
        if (found := _PROFILE.search(key)) is not None:
            profile = f"{found[1]}g.{found[2]}gb"
            key = key[: found.start()] + key[found.end() :]
            key = _unbranded(key.strip("."))
        if not key or key == "mig":
            slices = [e for e in self._entries if profile and e.mig_profile == profile]
            if not slices:
                raise self._unknown(text, profile)
            return _single(text, slices, plain_word=False)
        if profile:
            return self._read_slice(text, key, profile, memory_gb)
        chip, rest = self._split(text, key)
        whole = [e for e in self._by_chip[chip] if not e.mig_profile]
        return _single(text, _of_size(text, self._narrow(text, whole, rest), memory_gb))

    def _read_slice(self, text: str, key: str, profile: str, memory_gb: float | None) -> GpuSpec:
        parts = [e for e in self._exact.get(key, ()) if not e.mig_profile]
        if not parts:
            chip, rest = self._split(text, key)
            whole = [e for e in self._by_chip[chip] if not e.mig_profile]
            parts = self._narrow(text, whole, rest)
        parents = {e.spec.kind for e in parts}
        slices = [e for e in self._entries if e.spec.parent in parents]
        fitting = [e for e in slices if e.mig_profile == profile]
        if not fitting:
            offered = sorted({e.mig_profile for e in slices})
            raise UnknownNameError(
                f"'{text}': no MIG profile {profile} of {', '.join(sorted(parents))}; "
                + (f"there are {', '.join(offered)}" if offered else "none is known")
            )
        # The stated size may be the slice's (20) or that of the part it was cut from (40).
        if memory_gb is not None:
            sized = {e.spec.kind for e in parts if _has_size(e, memory_gb)}
            fitting = [
                e for e in fitting if _has_size(e, memory_gb) or e.spec.parent in sized
            ] or fitting
        return _single(text, fitting)

    def _split(self, text: str, key: str) -> tuple[str, str]:
        """Split a key into its chip and a rest that can be read; the longest such chip wins."""
        for chip in self._chips:
            if key.startswith(chip) and next(_readings(key[len(chip) :]), None) is not None:
                return chip, key[len(chip) :]
        raise self._unknown(text, key)

    def _narrow(self, text: str, entries: list[GpuEntry], rest: str) -> list[GpuEntry]:
        """Keep the entries that one reading of the rest (form and sizes) allows."""
        for form, sizes in islice(_readings(rest), _MOST_READINGS):
            kept = [
                e
                for e in entries
                if (not form or e.spec.form == form) and all(_has_size(e, s) for s in sizes)
            ]
            if kept:
                return kept
        raise UnknownNameError(
            f"no GPU kind '{text}': of that chip there are {_listed(entries)}; {_HOW_TO_ADD}",
            [e.spec.kind for e in entries],
        )

    def _unknown(self, text: str, key: str) -> UnknownNameError:
        import difflib  # noqa: PLC0415 - only a refusal needs it

        close = difflib.get_close_matches(key, (*self._exact, *self._by_chip), n=6, cutoff=0.6)
        kinds: dict[str, None] = {}
        for name in close:
            for entry in self._exact.get(name) or self._by_chip[name]:
                if not entry.mig_profile or "mig" in key or "g." in key:
                    kinds[entry.spec.kind] = None
        near = list(kinds)[:6]
        shown = f"close are {', '.join(near)}" if near else "nothing is close to it"
        return UnknownNameError(
            f"no GPU kind '{text[:_LONGEST_NAME]}': {shown}; {_HOW_TO_ADD}", near
        )


_HOW_TO_ADD: Final = "a site adds kinds by a file in its gpus folder"


def _readings(rest: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Every way to read what follows a chip as (form, sizes in GB).

    "sxm480gb" reads as SXM4 with 80 GB and as SXM with 480 GB: the caller takes the one that
    exists.
    """
    if not rest:
        yield "", ()
        return
    for pattern, form in _WORDS:
        if (found := pattern.match(rest)) is not None:
            for more, sizes in _readings(rest[found.end() :]):
                if not (form and more and form != more):
                    yield form or more, sizes
    if (found := _SIZE.match(rest)) is not None:
        for form, sizes in _readings(rest[found.end() :]):
            yield form, (float(found[1]), *sizes)


def _has_size(entry: GpuEntry, size_gb: float) -> bool:
    near: Callable[[float], bool] = lambda s: abs(size_gb - s) <= SIZE_TOLERANCE_FRAC * s  # noqa: E731
    return any(map(near, entry.sizes_gb)) or near(entry.spec.memory_gib)


def _of_size(text: str, entries: list[GpuEntry], memory_gb: float | None) -> list[GpuEntry]:
    if memory_gb is None:
        return entries
    kept = [e for e in entries if _has_size(e, memory_gb)]
    if not kept:
        raise UnknownNameError(
            f"no GPU kind '{text}' with {memory_gb:g} GB: there are {_listed(entries)}; "
            f"{_HOW_TO_ADD}"
        )
    return kept


def _single(text: str, entries: list[GpuEntry], *, plain_word: bool = True) -> GpuSpec:
    """The one kind, or the one that the plain word of its chip means."""
    if len(entries) == 1:
        return entries[0].spec
    plain = [e for e in entries if plain_word and e.plain]
    if len(plain) == 1:
        return plain[0].spec
    raise AmbiguousNameError(text, [e.spec.kind for e in entries])


def _listed(entries: Iterable[GpuEntry]) -> str:
    return ", ".join(f"{e.spec.kind} ({e.sizes_gb[0]:g} GB)" for e in entries)

"""GPU kinds: the bundled table, a site's own files and the MIG slices derived from both.

The facts are in ``data/gpus.toml``, whose head explains every field; a site adds or corrects kinds
by files of the same form in ``HOME/gpus/*.toml``.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.hardware import GpuSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DATA_FILE: Final = Path(__file__).with_name("data") / "gpus.toml"

# One direction of one GPU, bytes per second: x16 slots by generation, NVLink by generation (V100,
# A100, H100 and B200 datasheets, half of the quoted two-way rate).
LINK_RATES: Final[Mapping[str, float]] = {
    "pcie3": 16e9, "pcie4": 32e9, "pcie5": 64e9,
    "nvlink2": 150e9, "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9,
}  # fmt: skip

# What the driver and the CUDA context keep of a MIG slice beyond its share of the part's memory:
# `nvidia-smi mig -lgip` lists 4.75, 9.62, 19.50 and 39.25 GiB for 1/8, 2/8, 4/8 and 8/8 of an
# A100-40 of 39.4 GiB (NVIDIA MIG user guide). Slices known to lose more state their own figure.
MIG_OVERHEAD_GIB: Final = 0.2

_NUMBERS: Final = (
    "compute_capability", "memory_gib", "bandwidth_bytes_per_s", "bf16_flops", "fp16_flops",
    "fp8_flops", "fp4_flops", "int8_flops", "tdp_w", "link_bytes_per_s", "n_sms",
)  # fmt: skip
_TEXTS: Final = ("name", "vendor", "architecture", "link", "form", "source", "like", "chip")
_NAMING: Final = ("name", "chip", "plain", "sizes_gb", "aliases", "source")
_FIELDS: Final = (*_TEXTS, *_NUMBERS, "plain", "sizes_gb", "aliases", "mig", "mig_slices")
_REQUIRED: Final = (
    "vendor", "architecture", "compute_capability", "memory_gib", "bandwidth_bytes_per_s",
    "bf16_flops", "tdp_w",
)  # fmt: skip
_MUST_BE_POSITIVE: Final = frozenset({"memory_gib", "bandwidth_bytes_per_s", "tdp_w"})
_KIND: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_NAMED_SIZE: Final = re.compile(r"(.+?)-(\d+)(?:-|$)")
_PROFILE: Final = re.compile(r"\d+g\.(\d+)gb")


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One kind with the words that people use for it.

    ``chip`` is the bare word ("h100"), ``sizes_gb`` the memory sizes said with it, ``aliases``
    full names, ``plain`` whether the bare word means this kind and not its siblings.
    ``mig_profile`` is "3g.20gb" for a MIG slice, else "". ``site`` marks a kind from HOME.
    """

    spec: GpuSpec
    chip: str
    sizes_gb: tuple[float, ...]
    aliases: tuple[str, ...]
    plain: bool
    mig_profile: str = ""
    site: bool = False


def load_gpus(home: Path | None = None) -> tuple[GpuEntry, ...]:
    """Read the bundled kinds and those of a site, each followed by its MIG slices.

    Args:
        home: the site's folder; its ``gpus/*.toml`` add kinds, or replace those of the same name.

    Returns:
        Entries in the order of the files; a replaced kind keeps its place.

    Raises:
        BadInputError: a file that is not TOML, or a field that is unknown, missing or not a number.
    """
    bundled = _read(DATA_FILE)
    tables = {kind: _merged(kind, bundled, {}, DATA_FILE) for kind in bundled}
    origin = dict.fromkeys(tables, DATA_FILE)
    site: dict[str, dict[str, Any]] = {}
    folder = home / "gpus" if home is not None else None
    for path in sorted(folder.glob("*.toml")) if folder is not None and folder.is_dir() else ():
        added = _read(path)
        site.update(added)
        origin.update(dict.fromkeys(added, path))
    tables.update({kind: _merged(kind, site, tables, origin[kind]) for kind in site})
    entries: list[GpuEntry] = []
    for kind, table in tables.items():
        entry = _entry(kind, table, origin[kind])
        entries.append(entry)
        entries.extend(_mig_entries(entry, table, origin[kind]))
    return tuple(entries)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Parse one file into tables by kind, checking names and types of the fields."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise BadInputError(f"{path}: cannot be read as TOML: {error}") from error
    for kind, table in data.items():
        if not isinstance(table, dict):
            raise BadInputError(
                f"{path}: '{kind}' must stand in a table headed by the kind, such as [acme-24]"
            )
        if not _KIND.fullmatch(kind):
            raise BadInputError(
                f"{path}: kind '{kind}' must be lower case letters, digits, '-', '.' and '+', "
                'as in [acme-24] or ["acme-24.rev2"]'
            )
        for name, value in table.items():
            _check_field(kind, name, value, path)
    return data


def _check_field(kind: str, name: str, value: object, path: Path) -> None:
    where = f"{path}: [{kind}] {name}"
    if name not in _FIELDS:
        raise BadInputError(f"{where}: unknown field; valid are {', '.join(_FIELDS)}")
    if name in _NUMBERS:
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if not ok or not 0 <= float(value) < float("inf"):  # type: ignore[arg-type]
            raise BadInputError(f"{where}: must be a number of at least 0, got {value!r}")
        if name in _MUST_BE_POSITIVE and value == 0:
            raise BadInputError(f"{where}: must be above 0")
    elif name in _TEXTS and not isinstance(value, str):
        raise BadInputError(f"{where}: must be a text, got {value!r}")
    elif name == "plain" and not isinstance(value, bool):
        raise BadInputError(f"{where}: must be true or false, got {value!r}")
    elif name == "aliases" and not _list_of(value, str):
        raise BadInputError(f"{where}: must be a list of texts, got {value!r}")
    elif name in ("sizes_gb", "mig_slices") and not _list_of(value, int | float):
        raise BadInputError(f"{where}: must be a list of numbers, got {value!r}")
    elif name == "mig" and not (isinstance(value, list) and all(map(_is_profile, value))):
        raise BadInputError(
            f'{where}: must be a list of ["3g.20gb", compute slices, memory slices], got {value!r}'
        )


def _list_of(value: object, kind: Any) -> bool:  # noqa: ANN401 - a type or a union of types
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_profile(item: object) -> bool:
    return (
        isinstance(item, list)
        and len(item) in (3, 4)
        and isinstance(item[0], str)
        and _PROFILE.fullmatch(item[0]) is not None
        and all(isinstance(n, int | float) and n > 0 for n in item[1:])
    )


def _merged(
    kind: str,
    tables: Mapping[str, Mapping[str, Any]],
    complete: Mapping[str, Mapping[str, Any]],
    path: Path,
) -> dict[str, Any]:
    """Fill the fields that ``like`` leaves to another kind, following the chain to its end.

    Args:
        kind: the kind to fill.
        tables: the tables that it stands among, themselves not yet filled.
        complete: filled tables of the layer below; a kind that corrects one of these says
            ``like`` with its own name and keeps the names by which it is found.
        path: the file to name in errors.
    """
    merged = dict(tables[kind])
    seen = {kind}
    while "like" in merged:
        like = merged.pop("like")
        if like in tables and like not in seen:
            base = tables[like]
        elif like in complete:
            base = complete[like]
        else:
            raise BadInputError(f"{path}: [{kind}] like: no other kind '{like}'")
        seen.add(like)
        left_out = set() if like == kind else set(_NAMING)
        if "link" in merged:
            left_out.add("link_bytes_per_s")
        if "bf16_flops" in merged:
            left_out.add("fp16_flops")
        inherited = {name: value for name, value in base.items() if name not in left_out}
        merged = {**inherited, **merged}
    return merged


def _entry(kind: str, table: Mapping[str, Any], path: Path) -> GpuEntry:
    missing = [name for name in _REQUIRED if name not in table]
    if missing:
        raise BadInputError(f"{path}: [{kind}] lacks {', '.join(missing)}")
    link = table.get("link", "pcie4")
    if "link_bytes_per_s" not in table and link not in LINK_RATES:
        raise BadInputError(
            f"{path}: [{kind}] link '{link}' needs link_bytes_per_s; only "
            f"{', '.join(LINK_RATES)} are known"
        )
    bf16 = float(table["bf16_flops"])
    memory_gib = float(table["memory_gib"])
    spec = GpuSpec(
        kind=kind,
        name=table.get("name", kind),
        vendor=table["vendor"],
        architecture=table["architecture"],
        compute_capability=float(table["compute_capability"]),
        memory_gib=memory_gib,
        bandwidth_bytes_per_s=float(table["bandwidth_bytes_per_s"]),
        bf16_flops=bf16,
        fp16_flops=float(table.get("fp16_flops", bf16)),
        fp8_flops=float(table.get("fp8_flops", 0.0)),
        fp4_flops=float(table.get("fp4_flops", 0.0)),
        int8_flops=float(table.get("int8_flops", 0.0)),
        tdp_w=float(table["tdp_w"]),
        link=link,
        link_bytes_per_s=float(table.get("link_bytes_per_s", LINK_RATES.get(link, 0.0))),
        source=table.get("source", f"site file {path.name}"),
        n_sms=int(table.get("n_sms", 0)),
        form=table.get("form", "pcie"),
    )
    named = _NAMED_SIZE.match(kind)
    stem, size = (named[1], float(named[2])) if named else (kind, memory_gib)
    sizes = table.get("sizes_gb") or [size]
    return GpuEntry(
        spec=spec,
        chip=table.get("chip", stem),
        sizes_gb=tuple(float(s) for s in sizes),
        aliases=tuple(table.get("aliases", ())),
        plain=bool(table.get("plain", False)),
        site=path != DATA_FILE,
    )


def _mig_entries(entry: GpuEntry, table: Mapping[str, Any], path: Path) -> Iterator[GpuEntry]:
    """Derive the slices of one part.

    Compute goes by compute slices (g/7, A30 g/4), memory and bandwidth by memory slices. A slice
    talks to others through the host only, so its link is "none" at the host slot's rate.
    """
    spec = entry.spec
    totals = table.get("mig_slices", [7, 8])
    if len(totals) != 2 or min(totals) <= 0:
        raise BadInputError(f"{path}: [{spec.kind}] mig_slices: must be [compute, memory] slices")
    host = LINK_RATES["pcie5" if spec.compute_capability >= 9 else "pcie4"]
    for profile, compute_slices, memory_slices, *measured in table.get("mig", ()):
        compute = compute_slices / totals[0]
        memory = memory_slices / totals[1]
        slice_spec = GpuSpec(
            kind=f"{spec.kind}.mig-{profile}",
            name=f"{spec.name} MIG {profile}",
            vendor=spec.vendor,
            architecture=spec.architecture,
            compute_capability=spec.compute_capability,
            memory_gib=float(measured[0])
            if measured
            else spec.memory_gib * memory - MIG_OVERHEAD_GIB,
            bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s * memory,
            bf16_flops=spec.bf16_flops * compute,
            fp16_flops=spec.fp16_flops * compute,
            fp8_flops=spec.fp8_flops * compute,
            fp4_flops=spec.fp4_flops * compute,
            int8_flops=spec.int8_flops * compute,
            tdp_w=spec.tdp_w * compute,
            link="none",
            link_bytes_per_s=host,
            source=f"{memory_slices}/{totals[1]} of the memory and {compute_slices}/{totals[0]} of "
            f"the compute of {spec.kind} (NVIDIA MIG user guide)",
            n_sms=int(spec.n_sms * compute),
            form=spec.form,
            parent=spec.kind,
        )
        size = float(_PROFILE.fullmatch(profile)[1])  # type: ignore[index]
        yield GpuEntry(
            spec=slice_spec,
            chip=entry.chip,
            sizes_gb=(size,),
            aliases=(),
            plain=entry.plain,
            mig_profile=profile,
            site=entry.site,
        )

"""What a site pays, owns and fears: prices, node shapes, tariffs and penalties.

Defaults with their reasons are in ``settings_defaults.toml``; ``HOME/settings.toml`` overrides
them key by key.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import BadInputError, StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.job_states import ENDED_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from omnipilot.domain.hardware import GpuSpec

DEFAULTS_FILE: Final = Path(__file__).with_name("settings_defaults.toml")
FILE_NAME: Final = "settings.toml"
# The logs of rows beside it: the site's own, and the cluster's jobs.
LOG_NAME: Final = "history.jsonl"
CLUSTER_LOG_NAME: Final = "cluster_history.jsonl"

# Scalar settings with the least and greatest value that makes sense.
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "value_usd_per_token": (0.0, 1.0),
    "pue": (1.0, 5.0),
    "electricity_usd_per_kwh": (0.0, 10.0),
    "carbon_intensity_kg_per_kwh": (0.0, 3.0),
    "carbon_price_usd_per_kg": (0.0, 100.0),
    "wait_cost_usd_per_h": (0.0, 1e6),
    "slo_penalty_usd_per_h": (0.0, 1e6),
    "kv_knee_frac": (0.0, 1.0),
    "kv_floor_frac": (0.0, 1.0),
    "launch_success_prob": (0.0, 1.0),
    "lost_setup_h": (0.0, 1e3),
    "storage_bytes_per_s": (1e6, 1e13),
    "slurm_timeout_s": (0.1, 600.0),
    "launch_min_runtime_s": (0.0, 1e7),
    "decisions_kept": (0.0, 1e6),
}
_TABLE_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "price_usd_per_gpu_h": (0.0, 1e4),
    "price_anchors": (1e9, 1e15),
    "gpus_per_node_by_form": (1, 1024),
    "gpus_per_node": (1, 1024),
    "freshness_s": (1, 1e9),
    "retirement": (0.0, 1.0),
}
_WHOLE_NUMBERS: Final = frozenset({"gpus_per_node_by_form", "gpus_per_node"})
# Tables whose names are not GPU kinds.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "freshness_s": (
        "gpus_free", "queue", "node_health", "power", "activity", "launch_success", "queue_wait",
        "runs",
    ),
    "retirement": ("engine_minor", "cuda", "driver"),
    "launch_outcomes": tuple(sorted(ENDED_STATES)),
}  # fmt: skip
# Settings and tables that are texts, with what each may be.
_TEXTS: Final[Mapping[str, str]] = {
    "launch_user_cancel": "excluded|failure|runtime",
    "spark_master": r"|[\w:/.,\[\]*-]{1,255}",
}
_TEXT_TABLES: Final[Mapping[str, str]] = {
    "launch_outcomes": "success|failure|excluded",
    "gpu_kind_of_partition": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
}
VALID_KEYS: Final = ("gpu_kinds", *_RANGES, *_TABLE_RANGES, *_TEXTS, *_TEXT_TABLES)
_SLICE: Final = re.compile(r".*?-(\d+)(?:-.*)?\.mig-\d+g\.(\d+)gb")


@dataclass(frozen=True)
class Settings:
    """All settings of one site; build it with :meth:`load`.

    ``gpu_kinds_chosen`` tells whether the site itself set ``gpu_kinds``. ``origin`` is the file
    that errors name.

    Examples:
        >>> Settings.load().pue
        1.3
    """

    gpu_kinds: tuple[str, ...]
    value_usd_per_token: float
    pue: float
    electricity_usd_per_kwh: float
    carbon_intensity_kg_per_kwh: float
    carbon_price_usd_per_kg: float
    wait_cost_usd_per_h: float
    slo_penalty_usd_per_h: float
    kv_knee_frac: float
    kv_floor_frac: float
    launch_success_prob: float
    lost_setup_h: float
    storage_bytes_per_s: float
    slurm_timeout_s: float
    launch_min_runtime_s: float
    decisions_kept: float
    launch_user_cancel: str
    spark_master: str
    launch_outcomes: Mapping[str, str]
    gpu_kind_of_partition: Mapping[str, str]
    price_usd_by_kind: Mapping[str, float]
    price_anchors: Mapping[str, float]
    gpus_per_node_by_form: Mapping[str, int]
    gpus_per_node_by_kind: Mapping[str, int]
    freshness_s: Mapping[str, float]
    retirement: Mapping[str, float]
    gpu_kinds_chosen: bool = False
    origin: Path = field(default=DEFAULTS_FILE)

    @classmethod
    def load(cls, home: Path | None = None) -> Settings:
        """Read the defaults and a site's overrides.

        Args:
            home: the site's folder; without ``settings.toml`` in it the defaults hold.

        Raises:
            BadInputError: the file is not TOML, a key is unknown or a value out of range; the
                message names file, line and key.
        """
        values = tomllib.loads(DEFAULTS_FILE.read_text(encoding="utf-8"))
        path = home / FILE_NAME if home is not None else None
        site: dict[str, Any] = {}
        if path is not None and path.exists():
            site = _read_site(path)
        for key, value in site.items():
            merged = key in _TABLE_RANGES or key in _TEXT_TABLES
            values[key] = {**values[key], **value} if merged else value
        for kind in values["price_anchors"]:
            if kind not in values["price_usd_per_gpu_h"]:
                raise BadInputError(
                    f"{path}: price_anchors.{kind} needs a price_usd_per_gpu_h.{kind}"
                )
        plain: dict[str, Any] = {key: float(values[key]) for key in _RANGES}
        plain |= {key: values[key] for key in _TEXTS}
        plain |= {key: MappingProxyType(values[key]) for key in _TEXT_TABLES}
        return cls(
            gpu_kinds=tuple(values["gpu_kinds"]),
            **plain,
            price_usd_by_kind=MappingProxyType(values["price_usd_per_gpu_h"]),
            price_anchors=MappingProxyType(values["price_anchors"]),
            gpus_per_node_by_form=MappingProxyType(values["gpus_per_node_by_form"]),
            gpus_per_node_by_kind=MappingProxyType(values["gpus_per_node"]),
            freshness_s=MappingProxyType({k: float(v) for k, v in values["freshness_s"].items()}),
            retirement=MappingProxyType({k: float(v) for k, v in values["retirement"].items()}),
            gpu_kinds_chosen="gpu_kinds" in site,
            origin=path if site and path is not None else DEFAULTS_FILE,
        )

    def site_gpu_kinds(self, added: Iterable[str] = ()) -> tuple[str, ...]:
        """Kinds that the site has.

        Args:
            added: kinds from the site's own gpus folder; they count unless the site listed its
                kinds itself.
        """
        if self.gpu_kinds_chosen:
            return self.gpu_kinds
        return tuple(dict.fromkeys((*self.gpu_kinds, *added)))

    def check_kinds(self, known: Iterable[str]) -> None:
        """Refuse a site's settings that name a GPU kind which the catalogue lacks.

        Args:
            known: all canonical kinds.

        Raises:
            BadInputError: naming the first unknown kind and close ones.
        """
        kinds = set(known)
        for key, names in (
            ("gpu_kinds", self.gpu_kinds),
            ("price_usd_per_gpu_h", self.price_usd_by_kind),
            ("price_anchors", self.price_anchors),
            ("gpus_per_node", self.gpus_per_node_by_kind),
        ):
            for name in names:
                if name not in kinds:
                    raise BadInputError(
                        f"{self.origin}: {key}: no GPU kind '{name}'{did_you_mean(name, kinds)}"
                    )

    def gpus_per_node(self, gpu: GpuSpec) -> int:
        """GPUs of this kind in one node: by kind, else by form; 1 for a MIG slice."""
        if gpu.is_mig:
            return 1
        by_form = self.gpus_per_node_by_form
        return self.gpus_per_node_by_kind.get(gpu.kind, by_form.get(gpu.form, by_form["pcie"]))

    def price_usd_per_gpu_h(self, gpu: GpuSpec) -> float:
        """Price of one GPU for one hour, in USD.

        Listed kinds cost what the table says; a MIG slice its share of the memory of its part; any
        other kind as the anchor of the nearest bandwidth (:meth:`price_is_estimated`).
        """
        listed = self.price_usd_by_kind.get(gpu.kind)
        if listed is not None:
            return listed
        part = self.price_usd_by_kind.get(gpu.parent)
        share = _memory_share(gpu.kind)
        if part is not None and share is not None:
            return part * share
        anchor = min(
            self.price_anchors.items(),
            key=lambda item: abs(math.log(item[1] / gpu.bandwidth_bytes_per_s)),
        )[0]
        return self.price_usd_by_kind[anchor]

    def price_is_estimated(self, gpu: GpuSpec) -> bool:
        """True where no price is listed for the kind, nor for the part that a slice is cut from."""
        listed = self.price_usd_by_kind
        return gpu.kind not in listed and (
            gpu.parent not in listed or _memory_share(gpu.kind) is None
        )


def default_home() -> Path:
    """The site's folder: OMNIPILOT_HOME, else ``omnipilot`` in the user's data folder (XDG)."""
    explicit = os.environ.get("OMNIPILOT_HOME", "")
    if explicit:
        return Path(explicit).expanduser()
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG base directory specification ignores relative paths.
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "omnipilot"


def check_home(folder: Path) -> None:
    """Refuse a folder in which anybody may put files; one that is not there is fine.

    Raises:
        StateError: others than its owner and group can write in it.
    """
    try:
        mode = folder.stat().st_mode
    except OSError:
        return  # whoever opens a file in it says what is wrong
    if stat.S_ISDIR(mode) and mode & stat.S_IWOTH:
        raise StateError(
            f"anybody can write in {folder} (mode {stat.S_IMODE(mode):04o}): run chmod o-w on it, "
            "or give a --home of your own"
        )


def _memory_share(kind: str) -> float | None:
    """Memory share of a MIG slice by the sizes in its name: h100-80.mig-3g.40gb has half."""
    found = _SLICE.fullmatch(kind)
    return min(1.0, int(found[2]) / int(found[1])) if found and int(found[1]) else None


def _read_site(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        site = tomllib.loads(text)
    except (ValueError, RecursionError, OSError) as error:
        raise BadInputError(f"{path}: cannot be read as TOML: {error}") from error
    for key, value in site.items():
        if key not in VALID_KEYS:
            raise BadInputError(
                f"{_place(path, text, key)}: unknown setting '{key}'"
                f"{did_you_mean(key, VALID_KEYS)}; valid are {', '.join(VALID_KEYS)}"
            )
        if key == "gpu_kinds":
            if not (isinstance(value, list) and value and all(isinstance(k, str) for k in value)):
                raise BadInputError(
                    f"{_place(path, text, key)}: gpu_kinds must be a list of GPU kinds such as "
                    f'["h100-80"], got {value!r}'
                )
        elif key in _RANGES:
            _check_number(_place(path, text, key), key, value, _RANGES[key])
        elif key in _TEXTS:
            _check_text(_place(path, text, key), key, value, _TEXTS[key])
        else:
            _check_table(path, text, key, value)
    return site


def _check_table(path: Path, text: str, key: str, table: object) -> None:
    if not isinstance(table, dict):
        raise BadInputError(
            f"{_place(path, text, key)}: {key} must be a table headed by [{key}], got {table!r}"
        )
    for name, value in table.items():
        where = _place(path, text, name, table=key)
        names = _NAMES.get(key)
        if names is not None and name not in names:
            raise BadInputError(
                f"{where}: no '{name}' in {key}{did_you_mean(name, names)}; "
                f"valid are {', '.join(names)}"
            )
        if key in _TEXT_TABLES:
            _check_text(where, f"{key}.{name}", value, _TEXT_TABLES[key])
            continue
        _check_number(where, f"{key}.{name}", value, _TABLE_RANGES[key])
        if key in _WHOLE_NUMBERS and not isinstance(value, int):
            raise BadInputError(f"{where}: {key}.{name} must be a whole number, got {value!r}")


def _check_number(where: str, key: str, value: object, limits: tuple[float, float]) -> None:
    low, high = limits
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise BadInputError(
            f"{where}: {key} must be a number from {low:g} to {high:g}, got {value!r}"
        )


def _check_text(where: str, key: str, value: object, pattern: str) -> None:
    if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
        allowed = pattern.replace("|", " or ") if pattern.replace("|", "").isalpha() else "a name"
        raise BadInputError(f"{where}: {key} must be {allowed}, got {value!r}")


def _place(path: Path, text: str, key: str, table: str = "") -> str:
    """File and line of a key; the file alone where an unusual notation hides the line."""
    lines = text.splitlines()
    start = 0
    if table:
        heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\s*{table}\s*\]", line)]
        start = heads[0] + 1 if heads else 0
    head = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(lines[start:], start=start + 1):
        if head.match(line):
            return f"{path}, line {number}"
    return str(path)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Name the valid names that are close to one that is not, whatever their case; "" for none."""
    import difflib  # noqa: PLC0415 - only a refusal needs it

    by_key = {known.lower(): known for known in valid}
    close = difflib.get_close_matches(name.lower(), list(by_key), n=3, cutoff=0.6)
    return f", did you mean {' or '.join(by_key[key] for key in close)}?" if close else ""

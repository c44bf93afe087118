"""The menu of probes: what each measures, on which load, and what it takes, in closed form."""

from __future__ import annotations

import math
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import TARGET_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Collection

    from omnipilot.domain import ServingRequest

MENU_FILE: Final = Path(__file__).with_name("data") / "probes.toml"
SETUP_S: Final = 60.0  # staging and warming up, as the plan of a benchmark grid counts it
_S_PER_H: Final = 3600.0
_NUMBERS: Final = (
    "concurrency", "at_most", "prompt", "output", "requests_a_client", "least_requests",
    "longest_s",
)  # fmt: skip
_NAMES: Final = frozenset(("name", "meaning", "measures", *_NUMBERS))


@dataclass(frozen=True, slots=True)
class Load:
    """A load that a probe puts on an arm: closed loop of ``concurrency`` clients."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One benchmark of the menu; see ``data/probes.toml`` for the fields.

    ``measures`` maps a target to the standard deviation of its log that the probe adds.
    """

    name: str
    meaning: str
    measures: dict[str, float]
    concurrency: float
    at_most: int
    prompt: float
    output: float
    requests_a_client: int
    least_requests: int
    longest_s: float

    def load(self, request: ServingRequest) -> Load:
        """The probe's load for a request.

        Args:
            request: what is to be served.
        """
        clients = max(round(self.concurrency * request.concurrency), 1)
        return Load(
            min(clients, self.at_most),
            max(round(self.prompt * request.prompt_tokens), 1),
            max(round(self.output * request.output_tokens), 1),
        )

    def requests(self, load: Load, request_per_s: float) -> int:
        """Requests of the benchmark: as many as are served in its time, one a client at least.

        Args:
            load: the load.
            request_per_s: predicted rate at this load.
        """
        wanted = max(self.requests_a_client * load.concurrency, self.least_requests)
        served = math.floor(request_per_s * self.longest_s)
        return max(min(wanted, served), load.concurrency)

    def seconds(self, load: Load, request_per_s: float, cold_start_s: float) -> float:
        """Predicted wall time: cold start, set-up and the requests.

        Args:
            load: the load.
            request_per_s: predicted rate at this load.
            cold_start_s: predicted cold start of the arm.
        """
        served_s = self.requests(load, request_per_s) / max(request_per_s, 1e-6)
        return cold_start_s + SETUP_S + served_s


@dataclass(frozen=True, slots=True)
class Expense:
    """What a probe takes: node-hours and USD."""

    node_h: float
    cost_usd: float


def expense(
    seconds: float, n_gpus: int, gpus_per_node: int, usd_per_gpu_h: float, power_w: float = 0.0,
    usd_per_kwh: float = 0.0,
) -> Expense:  # fmt: skip
    """What a probe of that length takes on an arm, in closed form.

    A node-hour is an hour of all GPUs of a node.

    >>> expense(1800.0, 2, 8, 3.0)
    Expense(node_h=0.125, cost_usd=3.0)

    Args:
        seconds: wall time.
        n_gpus: GPUs of the arm.
        gpus_per_node: GPUs of a node of that kind.
        usd_per_gpu_h: price of one GPU for an hour.
        power_w: power of the arm.
        usd_per_kwh: price of electricity, PUE included.
    """
    hours = seconds / _S_PER_H
    energy_kwh = power_w / 1000.0 * hours
    return Expense(
        hours * n_gpus / max(gpus_per_node, n_gpus),
        hours * n_gpus * usd_per_gpu_h + energy_kwh * usd_per_kwh,
    )


@dataclass(frozen=True, slots=True)
class RejectedProbe:
    """A probe that tells the decision nothing, with why."""

    probe: Probe
    reason: str


def usable(
    menu: Collection[Probe], decisive: Collection[str]
) -> tuple[tuple[Probe, ...], tuple[RejectedProbe, ...]]:
    """Part a menu into probes that can change a decision and those that cannot.

    Args:
        menu: the probes.
        decisive: targets whose value moves the utility of any arm of this decision.

    Returns:
        The usable probes, and the others with the reason.
    """
    kept, rejected = [], []
    for probe in menu:
        if any(target in decisive for target in probe.measures):
            kept.append(probe)
            continue
        reason = (
            f"measures {', '.join(probe.measures)}, and the decision depends on "
            f"{', '.join(sorted(decisive)) or 'nothing that is uncertain'}"
        )
        rejected.append(RejectedProbe(probe, reason))
    return tuple(kept), tuple(rejected)


@lru_cache(maxsize=4)
def load_menu(path: Path = MENU_FILE) -> tuple[Probe, ...]:
    """Read a menu.

    Raises:
        BadInputError: the file is no menu, or a probe is malformed; the text names it.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise BadInputError(f"{path}: cannot be read as a menu of probes: {error}") from error
    entries = data.get("probe")
    if not isinstance(entries, list) or not entries:
        raise BadInputError(f"{path}: holds no [[probe]]")
    menu = tuple(_probe(path, entry) for entry in entries)
    names = [probe.name for probe in menu]
    if len(set(names)) < len(names):
        raise BadInputError(f"{path}: two probes have one name")
    return menu


def _probe(path: Path, entry: dict[str, Any]) -> Probe:
    name = entry.get("name")
    where = f"{path}: probe '{name}'"
    if not isinstance(name, str) or not name:
        raise BadInputError(f"{path}: a [[probe]] without a name")
    unknown = sorted(set(entry) - _NAMES)
    missing = sorted(_NAMES - set(entry))
    if unknown or missing:
        what = f"unknown key '{unknown[0]}'" if unknown else f"no '{missing[0]}'"
        raise BadInputError(f"{where}: {what}")
    measures = entry["measures"]
    if not isinstance(measures, dict) or not measures:
        raise BadInputError(f"{where}: measures nothing")
    for target, sd in measures.items():
        if target not in TARGET_BY_NAME:
            raise BadInputError(
                f"{where}: no target '{target}': say one of {', '.join(TARGET_BY_NAME)}"
            )
        _check(where, f"measures.{target}", sd)
    for key in _NUMBERS:
        _check(where, key, entry[key])
    return Probe(
        name=name, meaning=str(entry["meaning"]),
        measures={target: float(sd) for target, sd in measures.items()},
        concurrency=float(entry["concurrency"]), at_most=max(int(entry["at_most"]), 1),
        prompt=float(entry["prompt"]), output=float(entry["output"]),
        requests_a_client=max(int(entry["requests_a_client"]), 1),
        least_requests=max(int(entry["least_requests"]), 1),
        longest_s=float(entry["longest_s"]),
    )  # fmt: skip


def _check(where: str, key: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= float(str(value)) < math.inf:
        raise BadInputError(f"{where}: {key} must be a number of at least 0, got {value!r}")

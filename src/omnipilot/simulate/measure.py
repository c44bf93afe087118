"""A simulated benchmark: an engine starts, serves a load, and its labels are read off."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.frozen import dataclass
from omnipilot.domain.labels import FAILURE_BY_NAME
from omnipilot.domain.targets import TARGET_BY_NAME
from omnipilot.simulate.deployment import Load
from omnipilot.simulate.engine import serve
from omnipilot.simulate.startup import start

if TYPE_CHECKING:
    from omnipilot.simulate.deployment import Deployment
    from omnipilot.simulate.engine import Trace
    from omnipilot.simulate.startup import Started, StorageState

__all__ = ["Measurement", "closed_loop", "labels_of", "measure"]

_FEWEST_REQUESTS: Final = 24
_REQUESTS_PER_CLIENT: Final = 3
_MANY_CLIENTS: Final = 256
_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0
_SPREAD: Final = 0.2  # lengths of outputs reach so far above and below their mean

# Spread of replicates (standard deviation of the log): what the whole run shares, as node and
# clocks, and what each label adds.
_RUN_NOISE: Final = 0.012
_LABEL_NOISE: Final = {
    "ttft_p50_s": 0.04,
    "cold_start_s": 0.07,
    "power_mean_w": 0.015,
    "kv_cache_peak_frac": 0.01,
}
_LABEL_NOISE_ELSE: Final = 0.006
# Activities are read once a minute, which short runs feel.
_READ_ONCE_A_MINUTE: Final = frozenset({"sm_active_frac", "tensor_active_frac"})
_READING_NOISE: Final = 0.3
_FASTER_IS_MORE: Final = frozenset(
    {"aggregate_tokens_per_s", "output_tokens_per_s", "request_per_s"}
)
_SLOWER_IS_MORE: Final = frozenset({"ttft_p50_s", "itl_p50_s", "tpot_p50_s"})


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run.

    ``labels`` maps target names to values, empty for a failed start. ``trace`` is None then.
    """

    started: Started
    labels: dict[str, float]
    trace: Trace | None = None

    @property
    def status(self) -> str:
        """Status of the run's row."""
        return FAILURE_BY_NAME[self.started.failure].status if self.started.failure else "ok"


def closed_loop(clients: int, prompt_tokens: int, output_tokens: int) -> Load:
    """Give a benchmark's load: equal prompts, outputs that differ by up to a fifth.

    Replicates get the same lengths, as from a benchmark that always takes the same seed.

    Args:
        clients: requests in flight.
        prompt_tokens: of every request.
        output_tokens: mean of the outputs; the longest is this long and a fifth more.
    """
    few = min(clients, _MANY_CLIENTS)
    n = max(_REQUESTS_PER_CLIENT * few + 2 * (clients - few), _FEWEST_REQUESTS)
    # Multiples of the golden ratio fill the range evenly in every stretch of requests.
    place = (_GOLDEN * np.arange(n)) % 1.0
    lengths = output_tokens * (1.0 + _SPREAD * (2.0 * place - 1.0))
    outputs = np.maximum(np.rint(lengths).astype(int), 1)
    return Load(clients, (prompt_tokens,) * n, tuple(outputs.tolist()))


def measure(
    deployment: Deployment,
    clients: int,
    prompt_tokens: int,
    output_tokens: int,
    rng: np.random.Generator,
    storage: StorageState | None = None,
) -> Measurement:
    """Start an engine and run a benchmark on it.

    Raises:
        BadInputError: requests longer than the deployment's limit.
    """
    started = start(deployment, storage)
    if not started.ready:
        return Measurement(started, {})
    trace = serve(deployment, closed_loop(clients, prompt_tokens, output_tokens), started.kv_blocks)
    exact = labels_of(trace, deployment, started)
    return Measurement(started, _with_noise(exact, trace.seconds, rng), trace)


def labels_of(trace: Trace, deployment: Deployment, started: Started) -> dict[str, float]:
    """The exact labels of a run, in the targets' units."""
    seconds = trace.seconds
    prompts = trace.computed_prompt_tokens - trace.recomputed_tokens
    gaps = np.asarray(trace.gaps or [(0.0, 1)], dtype=np.float64)
    order = np.argsort(gaps[:, 0], kind="stable")
    reached = np.cumsum(gaps[order, 1])
    middle = int(np.searchsorted(reached, reached[-1] / 2.0))
    labels = {
        "aggregate_tokens_per_s": (prompts + trace.output_tokens) / seconds,
        "output_tokens_per_s": trace.output_tokens / seconds,
        "request_per_s": trace.finished / seconds,
        "ttft_p50_s": float(np.median(trace.first_token_s)),
        "itl_p50_s": float(gaps[order[middle], 0]),
        "tpot_p50_s": float(np.median(trace.per_token_s)),
        "cold_start_s": started.labels["cold_start_s"],
        "kv_cache_peak_frac": trace.peak_blocks / trace.blocks,
        "power_mean_w": deployment.tensor_parallel * trace.joules / seconds,
        "sm_active_frac": trace.active_s / seconds,
        "tensor_active_frac": trace.tensor_s / seconds,
    }
    return {name: value for name, value in labels.items() if value > 0.0}


def _with_noise(
    labels: dict[str, float], seconds: float, rng: np.random.Generator
) -> dict[str, float]:
    shared = rng.normal(0.0, _RUN_NOISE)
    reading = _READING_NOISE / math.sqrt(1.0 + seconds / 60.0)
    noisy = {}
    for name, value in labels.items():
        spread = _LABEL_NOISE.get(name, _LABEL_NOISE_ELSE)
        log = rng.normal(0.0, reading if name in _READ_ONCE_A_MINUTE else spread)
        if name in _FASTER_IS_MORE:
            log += shared
        elif name in _SLOWER_IS_MORE:
            log -= shared
        changed = value * math.exp(log)
        noisy[name] = min(changed, 1.0) if TARGET_BY_NAME[name].fraction else changed
    return noisy

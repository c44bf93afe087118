"""Which runs a simulated site made: workload cells, the arms tried in each, and what failed.

The counts are those of the paper's site: 561 runs of six families on three GPU kinds in four
precisions, 80 of them failed; the five cells that it held out as out of distribution are in.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.domain.frozen import dataclass
from omnipilot.simulate.deployment import Deployment
from omnipilot.simulate.startup import start

if TYPE_CHECKING:
    import numpy as np

    from omnipilot.catalog import Catalog

__all__ = [
    "CELLS", "GPU_KINDS", "HELD_OUT", "N_FAILED", "N_RUNS", "PRECISIONS", "Cell", "PlannedRun",
    "plan_runs",
]  # fmt: skip

N_RUNS: Final = 561
N_FAILED: Final = 80
_N_FAULTS: Final = 16  # of the failures, those that are the node's
_N_REPLICATES: Final = 20

GPU_KINDS: Final = ("a100-40", "h100-80", "h200-141")
PRECISIONS: Final = ("bf16", "fp8", "awq", "gptq")
_OFTEN_TRIED: Final = {"bf16": 1.0, "fp8": 0.9, "awq": 0.6, "gptq": 0.6}
_DEGREES: Final = (1, 2, 4, 8)

# Share of the context that is prompt, and mean output; outputs vary by a fifth and still fit.
_PROMPT_FRAC: Final = 0.75
_OUTPUT_FRAC: Final = 0.2


class Cell(NamedTuple):
    """A workload: model, context and clients."""

    model: str
    context_tokens: int
    concurrency: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of every prompt."""
        return int(_PROMPT_FRAC * self.context_tokens)

    @property
    def output_tokens(self) -> int:
        """Mean tokens of an output."""
        return int(_OUTPUT_FRAC * self.context_tokens)


_LOADS: Final = {
    "Qwen/Qwen2.5-3B-Instruct": ((2048, 64), (4096, 128), (8192, 256)),
    "Qwen/Qwen2.5-7B-Instruct": (
        (1024, 32), (2048, 64), (2048, 256), (2048, 1000), (4096, 64), (4096, 128), (4096, 200),
        (4096, 500), (8192, 100), (8192, 256), (16384, 64), (32768, 32), (4096, 1500),
        (4096, 2000),
    ),
    "Qwen/Qwen2.5-14B-Instruct": ((2048, 128), (4096, 128), (8192, 64)),
    "Qwen/Qwen2.5-32B-Instruct": ((2048, 64), (4096, 64), (4096, 200)),
    "Qwen/Qwen2.5-72B-Instruct": ((2048, 64),),
    "meta-llama/Llama-3.1-8B-Instruct": (
        (1024, 64), (2048, 32), (2048, 128), (2048, 500), (4096, 64), (4096, 128), (4096, 256),
        (4096, 1000), (8192, 64), (8192, 200),
    ),
    "meta-llama/Llama-3.1-70B-Instruct": ((2048, 64), (4096, 128)),
    "mistralai/Mistral-7B-Instruct-v0.3": (
        (1024, 128), (2048, 64), (2048, 256), (4096, 64), (4096, 200), (4096, 500), (8192, 64),
        (8192, 128),
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": ((2048, 64), (4096, 64), (4096, 200)),
    "google/gemma-2-9b-it": (
        (1024, 64), (2048, 64), (2048, 200), (4096, 64), (4096, 128), (8192, 64), (8192, 128),
    ),
    "google/gemma-2-27b-it": ((2048, 64), (4096, 100)),
    "allenai/OLMo-2-1124-7B-Instruct": (
        (1024, 64), (2048, 64), (2048, 200), (4096, 64), (4096, 128),
    ),
    "allenai/OLMo-2-1124-13B-Instruct": ((2048, 64),),
    "microsoft/phi-4": ((2048, 64), (4096, 128), (8192, 64)),
    "microsoft/Phi-3.5-mini-instruct": ((2048, 128), (4096, 64), (4096, 256)),
}  # fmt: skip

CELLS: Final[tuple[Cell, ...]] = tuple(
    Cell(model, context, clients) for model, loads in _LOADS.items() for context, clients in loads
)

# The cells that the paper held out: a model, two contexts and two loads beyond the others.
HELD_OUT: Final[tuple[Cell, ...]] = (
    Cell("allenai/OLMo-2-1124-13B-Instruct", 2048, 64),
    Cell("Qwen/Qwen2.5-7B-Instruct", 16384, 64),
    Cell("Qwen/Qwen2.5-7B-Instruct", 32768, 32),
    Cell("Qwen/Qwen2.5-7B-Instruct", 4096, 1500),
    Cell("Qwen/Qwen2.5-7B-Instruct", 4096, 2000),
)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run; ``faulty`` ones fail for a reason that the arm has no part in."""

    cell: Cell
    deployment: Deployment
    faulty: bool = False


def plan_runs(catalog: Catalog, rng: np.random.Generator) -> tuple[PlannedRun, ...]:
    """Choose the runs of a site.

    Args:
        catalog: facts on models, GPUs and precisions.
        rng: what is drawn with.

    Returns:
        :data:`N_RUNS` runs in the order in which they were made, :data:`N_FAILED` of which fail.
    """
    good: list[list[PlannedRun]] = []
    bad: dict[str, list[PlannedRun]] = defaultdict(list)
    for cell in CELLS:
        starting, failing = _tried(cell, catalog, rng)
        good.append(starting)
        for failure, run in failing:
            bad[failure].append(run)
    n_distinct = N_RUNS - N_FAILED - _N_REPLICATES
    chosen = _in_turn(good, n_distinct)
    again = [chosen[int(i)] for i in rng.choice(len(chosen), _N_REPLICATES, replace=False)]
    faults = [
        PlannedRun(run.cell, run.deployment, faulty=True)
        for run in (chosen[int(i)] for i in rng.choice(len(chosen), _N_FAULTS, replace=False))
    ]
    pools = [[runs[int(i)] for i in rng.permutation(len(runs))] for _, runs in sorted(bad.items())]
    failed = _in_turn(pools, N_FAILED - _N_FAULTS)
    runs = [*chosen, *again, *faults, *failed]
    return tuple(runs[int(i)] for i in rng.permutation(len(runs)))


def _tried(
    cell: Cell, catalog: Catalog, rng: np.random.Generator
) -> tuple[list[PlannedRun], list[tuple[str, PlannedRun]]]:
    """Arms that start, grouped by GPUs in a drawn order, and arms that fail with their class."""
    model = catalog.model(cell.model)
    # Small groups are tried first; a larger one than a model needs is rare.
    combos = [(gpu, degree) for degree in _DEGREES for gpu in GPU_KINDS]
    weight = [1.0 / (1.0 + degree) for _, degree in combos]
    order = rng.choice(len(combos), len(combos), replace=False, p=[w / sum(weight) for w in weight])
    starting: list[PlannedRun] = []
    failing: list[tuple[str, PlannedRun]] = []
    for i in order:
        kind, degree = combos[int(i)]
        for precision in PRECISIONS:
            if rng.random() >= _OFTEN_TRIED[precision]:
                continue
            run = PlannedRun(
                cell,
                Deployment(
                    model=model,
                    gpu=catalog.gpu(kind),
                    precision=catalog.precision(precision),
                    tensor_parallel=degree,
                    max_model_len=cell.context_tokens,
                ),
            )
            failure = start(run.deployment).failure
            if failure:
                failing.append((failure, run))
            else:
                starting.append(run)
    return starting, failing


def _in_turn(groups: list[list[PlannedRun]], n: int) -> list[PlannedRun]:
    """Take one of each group in turn until there are n, or no more."""
    taken: list[PlannedRun] = []
    for place in range(max(map(len, groups), default=0)):
        for group in groups:
            if place < len(group) and len(taken) < n:
                taken.append(group[place])
    return taken

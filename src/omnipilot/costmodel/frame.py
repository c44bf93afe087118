"""Scenarios as columns: what the cost model computes on.

One :class:`Frame` holds n questions as float64 columns (units in the names) and integer codes for
the categories. Everything in the cost model takes a frame and returns arrays of length n.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec
    from omnipilot.domain.scenario import Scenario

Made = TypeVar("Made")

# Prompt tokens assumed where a source does not give them (ML.ENERGY tasks): typical lengths of the
# named public prompt sets, image and video tokens included.
WORKLOAD_PROMPT_TOKENS = {
    "chat": 200.0,
    "code": 160.0,
    "gpqa": 250.0,
    "lm-arena-chat": 120.0,
    "sourcegraph-fim": 700.0,
    "mllm-chat": 700.0,
    "image-chat": 1200.0,
    "video-chat": 4000.0,
}
DEFAULT_PROMPT_TOKENS = 512.0
MEDIA_WORKLOADS = frozenset({"mllm-chat", "image-chat", "video-chat"})
DEFAULT_OUTPUT_TOKENS = 128.0
# Everything queued at once keeps any engine full; open arrivals without a stated rate are taken as
# a busy server without a standing queue.
UNLIMITED_CONCURRENCY = 100_000.0
OPEN_LOOP_CONCURRENCY = 256.0

# vLLM's max_num_seqs: 256 in V0, 1024 on H100-class parts in V1 (vllm EngineArgs), which 0.8 made
# the default; other engines are near the latter. Sources that set the limit themselves give it as
# their concurrency.
DEFAULT_MAX_NUM_SEQS = 1024.0
V0_MAX_NUM_SEQS = 256.0
DEFAULT_MEMORY_UTILIZATION = 0.9

# Architectures with a flash-attention implementation of their own in TGI and IBM's fork of it
# (text-generation-inference, server/models/__init__.py); the others run the reference code.
FLASH_ARCHITECTURES = ("llama", "gptneox", "gptbigcode", "rwforcausallm", "falcon", "mistral")


def implementation(engine: str, model: ModelArch) -> str:
    """How an engine runs an architecture: its own kernels or reference code; encoders apart."""
    if model.n_encoder_layers:
        return f"{engine} encoder-decoder"
    name = model.architecture.lower().replace("_", "")
    if engine in {"tgi", "tgis"} and not any(a in name for a in FLASH_ARCHITECTURES):
        return f"{engine} reference"
    return "native"


def pads_batches(engine: str, model: ModelArch) -> bool:
    """Whether an engine keeps each sequence's cache at its batch's longest, in one tensor.

    So does IBM's fork of TGI without flash attention (its models/causal_lm.py). TGI itself has come
    to run nearly every architecture by flash attention.
    """
    return engine == "tgis" and implementation(engine, model) != "native"


@lru_cache(maxsize=4096)
def engine_release(engine: str, version: str, source: str) -> str:
    """Engine with its major and minor version, such as ``vllm 0.11``.

    Where the version is not recorded the source stands in, because one source ran one stack.
    """
    digits = [part for part in version.lstrip("vV").split(".")[:2] if part.isdecimal()]
    return f"{engine} {'.'.join(digits)}" if digits else f"{engine} ({source or 'unstated'})"


@lru_cache(maxsize=4096)
def host_factor(engine: str, version: str) -> float:
    """Host work a step beside that of recent engines.

    vLLM 0.5 spent 62 % of a step on the host where a batch of an 8B model kept the GPU busy for
    38 % (vLLM blog, "v0.6.0: 2.7x throughput improvement and 5x latency reduction", 2024).
    """
    return 4.0 if _is_vllm_before(6, engine, version) else 1.0


@lru_cache(maxsize=4096)
def default_max_num_seqs(engine: str, version: str) -> float:
    """Sequences that an engine runs at once where nobody set a limit."""
    return V0_MAX_NUM_SEQS if _is_vllm_before(8, engine, version) else DEFAULT_MAX_NUM_SEQS


def _is_vllm_before(minor: int, engine: str, version: str) -> bool:
    """Tell a release of vLLM before 0.``minor``; a version that is not told is none."""
    digits = [part for part in version.lstrip("vV").split(".")[:2] if part.isdecimal()]
    return engine == "vllm" and len(digits) == 2 and digits[0] == "0" and int(digits[1]) < minor


@lru_cache(maxsize=4096)
def engine_era(engine: str, version: str, source: str) -> str:
    """Group engine versions whose kernels belong together.

    Versions are coarse on purpose: an era must hold enough rows for an offset, and a release
    without rows takes its era's.
    """
    release = engine_release(engine, version, source)
    digits = release.removeprefix(f"{engine} ").split(".")
    if len(digits) < 2 or release.endswith(")"):
        return release
    major, minor = int(digits[0]), int(digits[1])
    if engine == "vllm" and major == 0:
        low = 0 if minor < 8 else 8 if minor < 14 else 14 if minor < 18 else 18
        return f"vllm 0.{low}+"
    return f"{engine} {major}" if major else release


def kernel_class(precision: PrecisionSpec, gpu: GpuSpec) -> str:
    """How the matrix product runs: on native low-bit units or weight-only beside 16-bit ones."""
    native = {"fp8": gpu.fp8_flops, "fp4": gpu.fp4_flops, "int8": gpu.int8_flops}
    if precision.compute in native and native[precision.compute] <= 0:
        return f"{precision.name} weight-only"
    return precision.name


# Columns that another load of the same arms changes.
LOAD = frozenset({
    "prompt_tokens", "prompt_known", "output_tokens", "output_known", "concurrency",
    "concurrency_known", "max_num_seqs",
})  # fmt: skip
_CATEGORIES: tuple[tuple[str, Callable[[Scenario], str]], ...] = (
    ("source", lambda s: s.source),
    ("engine_era", lambda s: engine_era(s.engine, s.engine_version, s.source)),
    ("engine_release", lambda s: engine_release(s.engine, s.engine_version, s.source)),
    ("engine", lambda s: s.engine),
    ("gpu_architecture", lambda s: s.gpu.architecture),
    ("gpu_vendor", lambda s: s.gpu.vendor),
    ("gpu_kind", lambda s: s.gpu.kind),
    ("model", lambda s: s.model.base_id),
    ("moe_model", lambda s: s.model.base_id if s.model.is_moe else "dense"),
    ("family", lambda s: s.model.family),
    ("precision", lambda s: s.precision.name),
    ("kernel", lambda s: kernel_class(s.precision, s.gpu)),
    ("mode", lambda s: s.mode),
    ("workload", lambda s: s.workload),
    ("implementation", lambda s: implementation(s.engine, s.model)),
    ("parallelism", lambda s: parallelism(s.attention_dp, s.expert_parallel)),
    ("settings", lambda s: s.engine_settings),
    ("source_vendor", lambda s: f"{s.source}|{s.gpu.vendor}"),
    ("source_era", lambda s: f"{s.source}|{engine_era(s.engine, s.engine_version, s.source)}"),
)
CATEGORY_NAMES = tuple(name for name, _ in _CATEGORIES)


def parallelism(attention_dp: bool, expert_parallel: bool) -> str:
    """How the GPUs of an arm share a layer: its attention, and its experts where these differ."""
    attention = "attention-dp" if attention_dp else "tp"
    return f"{attention}+ep" if expert_parallel else attention


def peak_flops(precision: PrecisionSpec, gpu: GpuSpec) -> float:
    """Dense FLOP/s of one GPU for this format; 16-bit where the unit is missing."""
    peak16 = max(gpu.bf16_flops, gpu.fp16_flops)
    peak = {
        "fp8": gpu.fp8_flops,
        "fp4": gpu.fp4_flops,
        "int8": gpu.int8_flops,
        "fp16": gpu.fp16_flops or peak16,
        "bf16": peak16,
    }.get(precision.compute, peak16)
    return peak if peak > 0 else peak16


_KV_BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0, "nvfp4": 0.5625}


def _model_columns(m: ModelArch) -> tuple[float, ...]:
    embedding = m.embedding_params
    head = embedding if m.tied_embeddings else embedding / 2
    return (
        float(m.total_params), float(m.active_params), float(embedding), float(head),
        float(m.routed_expert_params), float(m.n_layers), float(m.hidden_size),
        float(m.n_kv_heads), float(m.n_heads),
        float(m.n_full_attention_layers * m.kv_elements_per_token_per_full_layer()),
        float(m.n_sliding_layers * m.kv_elements_per_token_per_sliding_layer()),
        float(m.sliding_window if m.n_sliding_layers else 0),
        float(m.recurrent_state_elements), float(m.n_experts), float(m.experts_per_token),
        float(m.is_moe), float(m.is_mla), float(m.vocab_size), float(m.n_moe_layers),
        float(m.n_recurrent_layers / max(m.n_layers, 1)), float(m.n_encoder_layers > 0),
        float(m.vision_params),
    )  # fmt: skip


_MODEL_NAMES = (
    "params", "active", "embedding", "head", "routed", "layers", "hidden", "kv_heads", "heads",
    "kv_full_elements", "kv_sliding_elements", "window_tokens", "recurrent_elements", "experts",
    "experts_per_token", "moe", "mla", "vocab", "moe_layers", "recurrent_frac", "encoder",
    "vision_params",
)  # fmt: skip


def _gpu_columns(g: GpuSpec) -> tuple[float, ...]:
    return (
        g.memory_gib * 2**30, g.bandwidth_bytes_per_s, max(g.bf16_flops, g.fp16_flops),
        g.link_bytes_per_s, float(not g.link.startswith("pcie")), g.tdp_w, g.compute_capability,
    )  # fmt: skip


_GPU_NAMES = ("memory_bytes", "bandwidth", "flops16", "link", "nvlink", "tdp_w", "capability")


@dataclass(frozen=True, slots=True)
class Frame:
    """n scenarios as columns.

    ``columns`` maps a name to a float64 array (n,); ``codes`` maps a category to int64 (n,), into
    ``levels`` of that category (strings). ``kept`` holds what :meth:`fixed` made, None in a frame
    that is asked once.
    """

    n: int
    columns: dict[str, NDArray[np.float64]]
    codes: dict[str, NDArray[np.int64]]
    levels: dict[str, tuple[str, ...]]
    kept: dict[tuple[int, str], tuple[object, object]] | None = field(
        default=None, compare=False, repr=False
    )

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Column by name, float64 (n,)."""
        return self.columns[name]

    def category(self, name: str) -> NDArray[np.str_]:
        """Category values as strings (n,)."""
        return np.asarray(self.levels[name])[self.codes[name]]

    def under(self, prompt_tokens: float, output_tokens: float, concurrency: float) -> Frame:
        """The same arms, all under one load, every quantity of it above 0.

        What :meth:`fixed` keeps is shared with this frame and all others made of it.
        """
        known = np.ones(self.n)
        columns = self.columns | {
            "prompt_tokens": known * prompt_tokens, "prompt_known": known,
            "output_tokens": known * max(output_tokens, 1.0), "output_known": known,
            "concurrency": known * concurrency, "concurrency_known": known,
        }  # fmt: skip
        if "saturated" in self.levels["mode"]:
            saturated = self.category("mode") == "saturated"
            columns["max_num_seqs"] = np.where(saturated, concurrency, columns["max_num_seqs"])
        return Frame(self.n, columns, self.codes, self.levels, self.kept)

    def fixed(self, owner: object, make: Callable[[], Made], what: str = "") -> Made:
        """What ``owner`` makes of the arms alone, whatever their load; made once where kept."""
        if self.kept is None:
            return make()
        found = self.kept.get((id(owner), what))
        # The owner is kept too: the identity of one that has gone may become another's.
        if found is None or found[0] is not owner:
            found = self.kept[id(owner), what] = (owner, make())
        return cast("Made", found[1])

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Frame:
        """Rows selected by ``index``; levels are kept."""
        columns = {k: v[index] for k, v in self.columns.items()}
        codes = {k: v[index] for k, v in self.codes.items()}
        n = len(next(iter(columns.values())))
        return Frame(n=n, columns=columns, codes=codes, levels=self.levels)


def _by_identity(
    items: Sequence[object], make: Callable[..., tuple[float, ...]], names: tuple[str, ...]
) -> dict[str, NDArray[np.float64]]:
    """Columns of catalogue facts, computed once per distinct object."""
    rows: list[tuple[float, ...]] = []
    seen: dict[int, int] = {}
    index = np.empty(len(items), dtype=np.int64)
    for i, item in enumerate(items):
        at = seen.get(id(item))
        if at is None:
            at = seen[id(item)] = len(rows)
            rows.append(make(item))
        index[i] = at
    table = np.asarray(rows, dtype=np.float64).reshape(len(rows), len(names))[index]
    return {name: table[:, j] for j, name in enumerate(names)}


def build_frame(scenarios: Sequence[Scenario]) -> Frame:
    """Turn scenarios into columns.

    Args:
        scenarios: n ≥ 1 questions with catalogue facts resolved.

    Returns:
        The frame; missing prompt lengths and concurrencies are filled by the documented defaults
        and flagged in ``prompt_known`` and ``concurrency_known``.
    """
    n = len(scenarios)
    columns = _by_identity([s.model for s in scenarios], _model_columns, _MODEL_NAMES)
    columns |= _by_identity([s.gpu for s in scenarios], _gpu_columns, _GPU_NAMES)
    pairs: dict[tuple[int, int], tuple[float, ...]] = {}
    rows = []
    for s in scenarios:
        key = (id(s.precision), id(s.gpu))
        facts = pairs.get(key)
        if facts is None:
            p = s.precision
            facts = pairs[key] = (
                p.bytes_per_param,
                p.effective_bits,
                float(p.embeddings_16bit),
                2.0 if p.experts_only else p.bytes_per_param,
                peak_flops(p, s.gpu),
            )
        rows.append(
            (
                *facts,
                float(s.n_gpus),
                float(s.pipeline_parallel),
                s.prompt_tokens,
                s.output_tokens,
                s.concurrency,
                s.memory_utilization_frac or DEFAULT_MEMORY_UTILIZATION,
                float(s.max_num_seqs) or default_max_num_seqs(s.engine, s.engine_version),
                _KV_BYTES.get(s.kv_dtype, 2.0),
                WORKLOAD_PROMPT_TOKENS.get(s.workload, DEFAULT_PROMPT_TOKENS),
            )
        )
    names = (
        "weight_bytes", "effective_bits", "embeddings_16bit", "dense_bytes", "flops", "n_gpus",
        "pp", "prompt_tokens", "output_tokens", "concurrency", "utilization", "max_num_seqs",
        "kv_bytes", "default_prompt",
    )  # fmt: skip
    table = np.asarray(rows, dtype=np.float64).reshape(n, len(names))
    columns |= {name: table[:, j] for j, name in enumerate(names)}
    known = columns["prompt_tokens"] > 0
    columns["prompt_known"] = known.astype(np.float64)
    columns["prompt_tokens"] = np.where(known, columns["prompt_tokens"], columns["default_prompt"])
    known = columns["output_tokens"] > 0
    columns["output_known"] = known.astype(np.float64)
    told = np.maximum(columns["output_tokens"], 1.0)
    columns["output_tokens"] = np.where(known, told, DEFAULT_OUTPUT_TOKENS)
    columns["attention_dp"] = np.asarray([float(s.attention_dp) for s in scenarios])
    columns["padded"] = np.asarray([float(pads_batches(s.engine, s.model)) for s in scenarios])
    columns["media"] = np.asarray([float(s.workload in MEDIA_WORKLOADS) for s in scenarios])
    columns["host_factor"] = np.asarray(
        [host_factor(s.engine, s.engine_version) for s in scenarios]
    )
    known = columns["concurrency"] > 0
    columns["concurrency_known"] = known.astype(np.float64)
    open_loop = np.asarray([s.mode == "poisson" for s in scenarios])
    assumed = np.where(open_loop, OPEN_LOOP_CONCURRENCY, UNLIMITED_CONCURRENCY)
    columns["concurrency"] = np.where(known, columns["concurrency"], assumed)
    saturated = np.asarray([s.mode == "saturated" for s in scenarios])
    columns["max_num_seqs"] = np.where(
        saturated & known, columns["concurrency"], columns["max_num_seqs"]
    )
    columns["static"] = np.asarray([s.mode in {"static", "lowlat"} for s in scenarios], float)
    codes, levels = {}, {}
    for name, get in _CATEGORIES:
        values = [get(s) for s in scenarios]
        levels[name] = tuple(sorted(set(values)))
        code = {level: i for i, level in enumerate(levels[name])}
        codes[name] = np.asarray([code[v] for v in values], dtype=np.int64)
    return Frame(n=n, columns=columns, codes=codes, levels=levels)

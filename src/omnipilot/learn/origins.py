"""Where public rows come from and under which licence, for the model card."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Repository and licence of one public source."""

    repository: str
    licence: str
    notice: str = ""


ORIGINS: dict[str, Origin] = {
    "llm_pilot": Origin("github.com/IBM/LLM-performance-prediction", "CDLA-Permissive-2.0"),
    "llm_inference_bench": Origin(
        "github.com/argonne-lcf/LLM-Inference-Bench", "BSD-3-Clause",
        "Copyright (c) 2024 UChicago Argonne, LLC",
    ),
    "inferencex_silicon": Origin("github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
    "inferencex_token_position": Origin("github.com/SemiAnalysisAI/InferenceX", "Apache-2.0"),
    "mlenergy_v3": Origin("github.com/ml-energy/leaderboard", "Apache-2.0"),
    "mlenergy_v2": Origin("github.com/ml-energy/leaderboard-v2", "Apache-2.0"),
    "trtllm_perf_docs": Origin("github.com/NVIDIA/TensorRT-LLM", "Apache-2.0"),
    "dstack_benchmarks": Origin("github.com/dstackai/benchmarks", "Apache-2.0"),
    "fmbench": Origin(
        "github.com/aws-samples/foundation-model-benchmarking-tool", "MIT-0"
    ),
}  # fmt: skip
UNSTATED = Origin("", "the owner's own rows")

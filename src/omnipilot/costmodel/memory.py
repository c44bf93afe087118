"""What a launch keeps on each GPU besides the KV cache: weights, activations, graphs, libraries.

Every formula is the engine's own start-up arithmetic; the constants by version are in
``catalog/data/engines.toml`` with their sources.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from omnipilot.costmodel.fit_question import LaunchSetup
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec

GIB: Final = float(2**30)
BYTES_16BIT: Final = 2.0

# Width to which mxfp4 expert kernels pad the model's hidden size: gpt-oss (2880 -> 3072) loads as
# 13.47 and 64.38 GiB on vLLM 0.11.0 where the checkpoints hold 12.8 and 60.8 (llm-d config
# explorer).
_MXFP4_PAD: Final = 256

# Hidden-size rows that the sampler's part of the profile run still holds for each token: the
# step's output and its gathered copy (slope between models of one vocabulary, vLLM 0.11.0).
_HELD_HIDDEN_ROWS: Final = 1.28

# Rows of model width alive beside the MLP's: residual, normalised input and output.
_HIDDEN_ROWS: Final = 3
# Rows of MLP width: gate and up projections and their product.
_MLP_ROWS: Final = 3

# Graph capture with a communicator holds its buffers too (vLLM 0.5.4, 34B on 4 parts: 2.4 GiB).
_GRAPH_TENSOR_PARALLEL: Final = 2.2
_NON_TORCH_PER_DOUBLING_GIB: Final = 0.05


def weights_bytes_per_gpu(
    model: ModelArch, precision: PrecisionSpec, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> float:
    """Bytes of weights on the fullest GPU.

    Embeddings, output head and vision towers stay in 16 bit where the format leaves them; formats
    of experts alone leave all other weights in 16 bit. The first or last pipeline stage also holds
    the embeddings or the head. KV projections are replicated beyond one KV head a GPU.

    Args:
        model: the model.
        precision: weight format.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: stages that share the layers.
    """
    full = max(BYTES_16BIT, precision.bytes_per_param)
    outer_bytes = full if precision.embeddings_16bit else precision.bytes_per_param
    outside = model.embedding_params + model.vision_params
    body = float(max(model.total_params - outside, 0))
    if precision.experts_only and model.routed_expert_params:
        padded = math.ceil(model.hidden_size / _MXFP4_PAD) * _MXFP4_PAD / max(model.hidden_size, 1)
        experts = model.routed_expert_params * padded
        body_bytes = experts * precision.bytes_per_param
        body_bytes += (body - model.routed_expert_params) * BYTES_16BIT
    else:
        body_bytes = body * precision.bytes_per_param
    if tensor_parallel > model.n_kv_heads > 0 and not model.is_mla:
        per_head = 2.0 * model.n_layers * model.hidden_size * model.head_dim
        body_bytes += per_head * (tensor_parallel - model.n_kv_heads) * precision.bytes_per_param
    if pipeline_parallel <= 1:
        return (body_bytes + outside * outer_bytes) / tensor_parallel
    layers = max(model.n_layers, 1)
    stage = body_bytes * math.ceil(layers / pipeline_parallel) / layers
    ends = model.embedding_params if model.tied_embeddings else model.embedding_params / 2.0
    return (stage + (ends + model.vision_params) * outer_bytes) / tensor_parallel


def step_bytes(model: ModelArch, tokens: int, tensor_parallel: int = 1) -> float:
    """Bytes that one forward pass of ``tokens`` holds at its peak, inside an MLP.

    A dense layer holds gate, up and product (split by tensor parallelism) beside three rows of
    model width; routed experts hold the same for every expert that a token uses, and its output.
    Matches what vLLM printed: 2.07 GiB for Llama-3.1-8B at 20000 tokens, 2.53 GiB for half of it at
    40000 (issues 10517 and 11251).
    """
    hidden = float(model.hidden_size)
    split = max(tensor_parallel, 1)
    rows = _MLP_ROWS * model.intermediate_size / split
    if model.is_moe and model.moe_intermediate_size:
        used = max(model.experts_per_token, 1)
        routed = used * (_MLP_ROWS * model.moe_intermediate_size / split + hidden)
        rows = max(rows if model.n_moe_layers < model.n_layers else 0.0, routed)
    return tokens * (rows + _HIDDEN_ROWS * hidden) * BYTES_16BIT


def sampler_bytes(setup: LaunchSetup) -> float:
    """Bytes that sampling ``max_num_seqs`` sequences holds at its peak; 0 where it is not profiled.

    Logits are gathered over the tensor-parallel group, so the size does not shrink with it.
    """
    era, model = setup.era, setup.question.model
    if setup.chunked and not era.sampler_when_chunked:
        return 0.0
    sequences = min(setup.max_num_seqs, setup.step_tokens)
    logits = era.sampler_bytes_per_logit * sequences * model.vocab_size
    held = _HELD_HIDDEN_ROWS * setup.step_tokens * model.hidden_size * BYTES_16BIT
    return logits + (held if era.generation == "v1" else 0.0)


def activation_bytes(setup: LaunchSetup) -> tuple[float, bool]:
    """Bytes of activations at the peak of the profile run.

    Returns:
        (bytes, True where the sampler and not the forward pass decides).
    """
    question = setup.question
    model, split = question.model, question.tensor_parallel
    forward = step_bytes(model, setup.step_tokens, split)
    if setup.era.retained_allreduce and split > 1:
        held = 2.0 * model.n_layers * setup.step_tokens * model.hidden_size * BYTES_16BIT
        forward += held / max(question.pipeline_parallel, 1)
    sampler = sampler_bytes(setup)
    return max(forward, sampler), sampler > forward


def non_torch_bytes(setup: LaunchSetup) -> float:
    """Bytes outside the allocator: CUDA context, libraries and communicators."""
    era, question = setup.era, setup.question
    group = question.tensor_parallel * question.pipeline_parallel
    size = era.non_torch_gib
    if group > 1:
        size += era.non_torch_nvlink_gib if _fast_link(question.gpu) else era.non_torch_pcie_gib
        size += _NON_TORCH_PER_DOUBLING_GIB * math.log2(group / 2.0)
    return size * GIB


def graph_bytes(setup: LaunchSetup) -> float:
    """Bytes of captured CUDA graphs; 0 with ``enforce_eager``."""
    question = setup.question
    if question.enforce_eager:
        return 0.0
    layers = math.ceil(question.model.n_layers / max(question.pipeline_parallel, 1))
    factor = _GRAPH_TENSOR_PARALLEL if question.tensor_parallel > 1 else 1.0
    return setup.era.graph_gib_per_layer * layers * factor * GIB


def graph_budget_bytes(setup: LaunchSetup) -> float:
    """The part of :func:`graph_bytes` that the engine takes off its budget beforehand."""
    if setup.question.enforce_eager:
        return 0.0
    layers = math.ceil(setup.question.model.n_layers / max(setup.question.pipeline_parallel, 1))
    return setup.era.graph_estimate_gib_per_layer * layers * GIB


def _fast_link(gpu: GpuSpec) -> bool:
    return not gpu.link.lower().startswith(("pcie", "none"))

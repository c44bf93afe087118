"""Deployments for tests, resolved once."""

from __future__ import annotations

from functools import cache

from omnipilot.catalog import Catalog
from omnipilot.simulate.deployment import Deployment, Load

SMALL = "Qwen/Qwen2.5-7B-Instruct"


@cache
def catalog() -> Catalog:
    return Catalog.load()


def deployment(
    model: str = SMALL,
    gpu: str = "h100-80",
    precision: str = "bf16",
    tensor_parallel: int = 1,
    max_model_len: int = 4096,
    max_num_seqs: int = 0,
    max_batched_tokens: int = 0,
) -> Deployment:
    facts = catalog()
    return Deployment(
        model=facts.model(model),
        gpu=facts.gpu(gpu),
        precision=facts.precision(precision),
        tensor_parallel=tensor_parallel,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
    )


def load(clients: int, prompt: int, output: int, requests: int) -> Load:
    return Load(clients, (prompt,) * requests, (output,) * requests)

"""Typed rows of the stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omnipilot.domain.arm import StackFingerprint

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class InferenceRun:
    """One measured (or failed) serving run, in the normalised columns.

    ``labels`` maps target names to values in the target's unit; a missing label is absent.
    ``status`` is "ok" or a failure class ("oom", "error", "unsupported", "crash").
    """

    source: str
    model: str
    engine: str
    gpu: str
    n_gpus: int
    precision: str
    mode: str
    status: str
    labels: dict[str, float]
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    concurrency: float = 0.0
    kv_dtype: str = ""
    max_model_len: int = 0
    gpu_memory_gb: float = 0.0
    workload: str = ""
    notes: str = ""
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "inference_run"
    schema_version: int = SCHEMA_VERSION

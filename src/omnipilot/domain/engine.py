"""What an engine is told at its start."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class FlagReason:
    """Why an argument or a variable is there, and where that is written."""

    flag: str
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """The parameters with which one arm serves one request.

    Args:
        max_model_len: longest request, in tokens.
        memory_utilization_frac: share of GPU memory for the engine.
        max_num_seqs: most sequences of one step.
        kv_dtype: format of the KV cache; "auto" is that of the activations.
        arguments: further arguments of the command line.
        environment: variables to set, (name, value).
        unset: variables to take out of the environment.
        needs: what the operator must supply before the launch can work, "" for nothing.
        reasons: why each of the further arguments and variables is there.
    """

    max_model_len: int
    memory_utilization_frac: float
    max_num_seqs: int
    kv_dtype: str = "auto"
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    needs: str = ""
    reasons: tuple[FlagReason, ...] = ()

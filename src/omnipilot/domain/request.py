"""What an operator asks for."""

from __future__ import annotations

import math
from dataclasses import field

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective; None where the operator set no limit."""

    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.ttft_p50_s), ("tpot", self.tpot_p50_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInputError(f"the {name} objective must be above 0, got {value}")


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """One serving request: model, load and limits.

    ``context_tokens`` is the longest request (prompt + output). Where prompt and output tokens are
    not given the prompt takes 3/4 of the context (PAPER, Request) — see :meth:`with_lengths`.

    Raises:
        BadInputError: a count below 1 or a duration that is not positive.
    """

    model_id: str
    concurrency: int
    context_tokens: int
    prompt_tokens: int
    output_tokens: int
    duration_h: float = 1.0
    slo: Slo = field(default_factory=Slo)
    engine: str = "vllm"
    engine_version: str = ""

    def __post_init__(self) -> None:
        for name in ("concurrency", "context_tokens", "prompt_tokens", "output_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise BadInputError(f"{name.replace('_', ' ')} must be at least 1, got {value}")
        if self.prompt_tokens + self.output_tokens > self.context_tokens:
            raise BadInputError(
                f"prompt {self.prompt_tokens} + output {self.output_tokens} tokens exceed the "
                f"context of {self.context_tokens}: raise --context or shorten them"
            )
        if not (math.isfinite(self.duration_h) and self.duration_h > 0):
            raise BadInputError(f"hours must be above 0, got {self.duration_h}")

    @staticmethod
    def with_lengths(
        context_tokens: int, prompt_tokens: int | None, output_tokens: int | None
    ) -> tuple[int, int]:
        """Fill in the prompt and output lengths that the operator left out.

        Returns:
            (prompt_tokens, output_tokens); the prompt defaults to 3/4 of the context.
        """
        if prompt_tokens is None and output_tokens is None:
            prompt = max(1, context_tokens * 3 // 4)
            return prompt, max(1, context_tokens - prompt)
        if prompt_tokens is None:
            return max(1, context_tokens - (output_tokens or 0)), output_tokens or 1
        if output_tokens is None:
            return prompt_tokens, max(1, context_tokens - prompt_tokens)
        return prompt_tokens, output_tokens

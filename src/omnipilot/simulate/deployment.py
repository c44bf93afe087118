"""What a simulated launch consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec

__all__ = ["BLOCK_TOKENS", "Deployment", "Load"]

BLOCK_TOKENS: Final = 16

# Limits that the server takes unasked, by the part's memory: vllm/engine/arg_utils.py of v0.11,
# _set_default_args (1024 sequences and 8192 tokens a step from 70 GiB, A100 left out).
_LARGE_GIB: Final = 70.0
_LARGE_LIMITS: Final = (1024, 8192)
_SMALL_LIMITS: Final = (256, 2048)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine on ``tensor_parallel`` GPUs of one node.

    ``max_num_seqs`` and ``max_batched_tokens`` are 0 for the engine's own limits.

    Raises:
        BadInputError: a model whose layers the simulator does not know, or a size below 1.
    """

    model: ModelArch
    gpu: GpuSpec
    precision: PrecisionSpec
    tensor_parallel: int = 1
    max_model_len: int = 4096
    memory_utilization_frac: float = 0.9
    max_num_seqs: int = 0
    max_batched_tokens: int = 0

    def __post_init__(self) -> None:
        model = self.model
        if model.is_mla or model.n_recurrent_layers or model.n_encoder_layers or not model.n_layers:
            raise BadInputError(
                f"{model.model_id} cannot be simulated: only decoders with plain attention can"
            )
        if min(self.tensor_parallel, self.max_model_len) < 1 or self.gpu.n_sms < 1:
            raise BadInputError(
                f"{self.gpu.kind}: a simulated launch needs at least one GPU with a known number "
                "of multiprocessors, and a length of at least 1 token"
            )

    @property
    def sequence_limit(self) -> int:
        """Requests that may run at the same time."""
        return self.max_num_seqs or self._limits[0]

    @property
    def token_limit(self) -> int:
        """Tokens of one step, prompts and decodes together."""
        return max(self.max_batched_tokens or self._limits[1], self.sequence_limit)

    @property
    def _limits(self) -> tuple[int, int]:
        large = self.gpu.memory_gib >= _LARGE_GIB and self.gpu.architecture != "ampere"
        return _LARGE_LIMITS if large else _SMALL_LIMITS

    @property
    def kv_heads_per_gpu(self) -> int:
        """KV heads that one GPU holds; beyond one a GPU they are replicated."""
        return max(self.model.n_kv_heads // self.tensor_parallel, 1)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the cache of one GPU, 16 bit an element."""
        return 4 * self.model.n_layers * self.kv_heads_per_gpu * self.model.head_dim


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that each keep one request in flight until all requests are done.

    Args:
        clients: requests in flight.
        prompt_tokens: prompt of each request, (n_requests,).
        output_tokens: tokens that each request generates, at least 1, (n_requests,).
    """

    clients: int
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.clients < 1 or not self.prompt_tokens:
            raise BadInputError("a load needs at least one client and one request")
        if len(self.prompt_tokens) != len(self.output_tokens):
            raise BadInputError("a load needs as many output lengths as prompts")
        if min(self.prompt_tokens) < 1 or min(self.output_tokens) < 1:
            raise BadInputError("prompts and outputs of a load have at least 1 token")

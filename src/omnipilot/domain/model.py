"""Model architectures: what decides a model's memory and arithmetic."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class ModelArch:
    """The structure of one model, read from its config or the bundled table.

    Parameter counts are in parameters (not billions). Layer counts split the decoder by how a
    layer keeps its past: full attention (KV grows with the context), sliding window (KV stops at
    the window) or recurrent (a constant state). Encoder-decoder models count decoder layers in
    ``n_layers`` and encoder layers in ``n_encoder_layers``.
    """

    model_id: str
    base_id: str
    family: str
    architecture: str
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    tied_embeddings: bool
    total_params: int
    active_params: int
    embedding_params: int
    native_precision: str
    n_full_attention_layers: int
    n_sliding_layers: int = 0
    sliding_window: int = 0
    n_recurrent_layers: int = 0
    recurrent_state_elements: int = 0
    global_kv_heads: int = 0
    global_head_dim: int = 0
    kv_shared_layers: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    n_experts: int = 0
    experts_per_token: int = 0
    n_shared_experts: int = 0
    moe_intermediate_size: int = 0
    n_moe_layers: int = 0
    routed_expert_params: int = 0
    n_encoder_layers: int = 0
    vision_params: int = 0
    published_params: float = 0.0
    quant_method: str = ""
    quant_group_size: int = 0
    torch_dtype: str = "bfloat16"
    source: str = ""

    def __hash__(self) -> int:
        """By name alone: models are keys of caches that every answer looks into."""
        return hash(self.model_id)

    @property
    def is_moe(self) -> bool:
        """True when tokens are routed to experts."""
        return self.n_experts > 1

    @property
    def is_mla(self) -> bool:
        """True for multi-head latent attention, whose cache holds one latent vector a layer."""
        return self.kv_lora_rank > 0

    def holds(self, precision: str) -> bool:
        """Whether the checkpoint's weights are in a format as published; scaled blocks are fp8."""
        return self.named(self.native_precision) == self.named(precision)

    def named(self, precision: str) -> str:
        """What a format is called in rows of this model: its own block-scaled fp8 is ``fp8``."""
        own_blocks = precision == self.native_precision == "fp8-block"
        return "fp8" if own_blocks else precision

    def kv_elements_per_token_per_full_layer(self) -> int:
        """Cache elements that one token adds in one full-attention layer, all KV heads together."""
        if self.is_mla:
            return self.kv_lora_rank + self.qk_rope_head_dim
        heads = self.global_kv_heads or self.n_kv_heads
        return 2 * heads * (self.global_head_dim or self.head_dim)

    def kv_elements_per_token_per_sliding_layer(self) -> int:
        """Cache elements that one token adds in one sliding-window layer, all KV heads together."""
        return 2 * self.n_kv_heads * self.head_dim

"""Parameter counts of single parts, checked against sums written beside them."""

from __future__ import annotations

from omnipilot.catalog.arch import (
    Layer,
    attention_params,
    count,
    delta_net_params,
    indexer_params,
    linear,
    mamba1_params,
    mamba2_params,
    mla_params,
    mlp_params,
    norm_params,
)


def test_a_matrix_counts_its_bias_once_an_output() -> None:
    assert linear(10, 4) == 40
    assert linear(10, 4, bias=True) == 44


def test_grouped_queries_shrink_only_keys_and_values() -> None:
    # query 8*8 + key 8*4 + value 8*4 + out 8*8
    assert attention_params(8, 4, 2, 2) == 64 + 32 + 32 + 64


def test_biases_follow_the_outputs_of_each_projection() -> None:
    plain = attention_params(8, 4, 2, 2)
    assert attention_params(8, 4, 2, 2, qkv_bias=True) == plain + 8 + 4 + 4
    assert attention_params(8, 4, 2, 2, out_bias=True) == plain + 8


def test_an_output_gate_doubles_the_query_projection() -> None:
    assert attention_params(8, 4, 2, 2, gated_query=True) == 64 * 2 + 32 + 32 + 64


def test_one_projection_may_serve_as_key_and_value() -> None:
    assert attention_params(8, 4, 2, 2, key_is_value=True) == 64 + 32 + 64


def test_a_layer_without_its_own_cache_has_no_key_and_value_weights() -> None:
    assert attention_params(8, 4, 2, 2, own_kv=False) == 64 + 64


def test_narrow_value_heads_shrink_value_and_output() -> None:
    # query 8*8 + key 8*4 + value 8*2 + out 4*8
    assert attention_params(8, 4, 2, 2, v_dim=1) == 64 + 32 + 16 + 32


def test_latent_attention_of_deepseek_v3_is_187_million_a_layer() -> None:
    # 7168*1536 + 1536 + 1536*128*192 + 7168*576 + 512 + 512*128*256 + 128*128*7168
    parts = 11_010_048 + 1_536 + 37_748_736 + 4_128_768 + 512 + 16_777_216 + 117_440_512
    assert mla_params(7168, 128, 1536, 512, 128, 64, 128) == parts


def test_latent_attention_without_query_compression_has_a_full_query() -> None:
    # 2048*16*192 + 2048*576 + 512 + 512*16*256 + 16*128*2048
    parts = 6_291_456 + 1_179_648 + 512 + 2_097_152 + 4_194_304
    assert mla_params(2048, 16, 0, 512, 128, 64, 128) == parts


def test_the_sparse_attention_indexer_counts_query_key_norm_and_head_weights() -> None:
    assert indexer_params(100, 20, 4, 8) == 20 * 32 + 100 * 8 + 16 + 400


def test_a_gated_mlp_has_three_matrices_and_a_plain_one_two() -> None:
    assert mlp_params(10, 40, gated=True) == 1200
    assert mlp_params(10, 40, gated=False) == 800
    assert mlp_params(10, 40, gated=False, bias=True) == 800 + 40 + 10


def test_a_centred_norm_has_a_shift() -> None:
    assert norm_params(10, centred=False) == 10
    assert norm_params(10, centred=True) == 20


def test_a_delta_net_layer_keeps_a_matrix_a_head_and_the_convolution_tail() -> None:
    params, state = delta_net_params(
        hidden=10, key_heads=1, value_heads=2, key_dim=3, value_dim=5, conv=4
    )
    # in 10*(3+3+10+10+2+2) + out 10*10 + conv (3+3+10)*4 + decay and step 2*2 + norm 5
    assert params == 300 + 100 + 64 + 4 + 5
    # 2 heads * 3 * 5, and 3 past inputs of 16 channels
    assert state == 30 + 48


def test_a_mamba2_layer_counts_projections_convolution_and_state() -> None:
    params, state = mamba2_params(hidden=10, heads=2, head_dim=4, groups=1, state=3, conv=4)
    # inner 8, channels 8+2*3=14: in 10*(8+14+2) + conv 14*5 + 3*2 + norm 8 + out 8*10
    assert params == 240 + 70 + 6 + 8 + 80
    assert state == 8 * 3 + 14 * 3


def test_a_mamba1_layer_counts_projections_convolution_and_state() -> None:
    params, state = mamba1_params(hidden=10, inner=20, state=2, dt_rank=1, conv=4)
    # in 400 + conv 100 + x 20*5 + dt 20+20 + A 40 + D 20 + out 200
    assert params == 400 + 100 + 100 + 40 + 40 + 20 + 200
    assert state == 40 + 60


def test_active_parameters_are_all_but_idle_experts_and_vision() -> None:
    dense = Layer("full", mixer_params=10, ffn_params=20, routed_params=0, norm_params=1)
    routed = Layer("sliding", mixer_params=10, ffn_params=2, routed_params=80, norm_params=1)
    sums = count([dense, routed], outside_params=100, vision_params=7, n_experts=8, top_k=2)
    assert sums.total == 31 + 13 + 80 + 100 + 7
    assert sums.active == 31 + 13 + 80 * 2 // 8 + 100
    assert sums.routed == 80
    assert (sums.n_full, sums.n_sliding, sums.n_moe) == (1, 1, 1)

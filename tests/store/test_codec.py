"""Rows as hashed lines."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.domain import BadInputError, InferenceRun, StackFingerprint
from omnipilot.store.codec import (
    LINE_BYTES,
    StoredRow,
    UnknownKindError,
    UnreadableLineError,
    decode_line,
    digest_of_line,
    encode_row,
)

RUN = InferenceRun(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="H100", n_gpus=2, precision="fp8",
    mode="online", status="ok", labels={"ttft_p50_s": 0.25, "aggregate_tokens_per_s": 9000.0},
    stack=StackFingerprint(engine_version="0.11.1"),
)  # fmt: skip

runs = st.builds(
    InferenceRun,
    source=st.text(max_size=20),
    model=st.text(max_size=20),
    engine=st.sampled_from(["vllm", "sglang"]),
    gpu=st.text(max_size=10),
    n_gpus=st.integers(1, 72),
    precision=st.just("fp8"),
    mode=st.just("online"),
    status=st.sampled_from(["ok", "oom"]),
    labels=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False)),
    concurrency=st.floats(0, 1e6),
    notes=st.text(max_size=40),
    stack=st.builds(StackFingerprint, engine_version=st.text(max_size=8)),
    pipeline_parallel=st.integers(1, 8),
    expert_parallel=st.booleans(),
    engine_settings=st.text(max_size=8),
)


def test_fields_that_came_later_leave_the_hash_of_a_row_that_does_not_use_them() -> None:
    run = InferenceRun(
        source="site", model="m", engine="vllm", gpu="h100-80", n_gpus=2, precision="bf16",
        mode="online", status="ok", labels={"ttft_p50_s": 0.5}, prompt_tokens=64,
        concurrency=8,
    )  # fmt: skip
    # As stored before the fields were there.
    assert encode_row(run).digest.hex() == (
        "3e180f174492a48e2e9ff2fc92bc09e75105e267f130f65dedd932dc956465e3"
    )
    for later in (
        {"engine_settings": "max-num-seqs=64"}, {"expert_parallel": True}, {"pipeline_parallel": 2},
    ):  # fmt: skip
        changed = dataclasses.replace(run, **later)
        stored = encode_row(changed)
        assert stored.digest != encode_row(run).digest
        assert decode_line(stored.line(1.0)).row == changed


def test_a_line_is_one_object_with_kind_schema_hash_time_and_stack() -> None:
    line = encode_row(RUN).line(12.5)
    told = json.loads(line)
    assert line.endswith(b"\n")
    assert told["kind"] == "inference_run"
    assert told["schema_version"] == 1
    assert told["ingested_at_s"] == 12.5
    assert told["stack"]["engine_version"] == "0.11.1"
    assert told["content_hash"] == encode_row(RUN).digest.hex()


@given(run=runs, now_s=st.floats(0, 1e10))
def test_a_row_survives_the_log(run: InferenceRun, now_s: float) -> None:
    encoded = encode_row(run)
    line = encoded.line(now_s)
    assert decode_line(line) == StoredRow(run, encoded.digest.hex(), now_s)
    assert digest_of_line(line) == encoded.digest
    assert line.count(b"\n") == 1


@given(run=runs)
def test_the_hash_is_of_content_not_of_order_time_or_number_type(run: InferenceRun) -> None:
    digest = encode_row(run).digest
    turned = dataclasses.replace(run, labels=dict(reversed(run.labels.items())))
    assert encode_row(turned).digest == digest
    whole = dataclasses.replace(run, concurrency=64.0)
    assert encode_row(whole).digest == encode_row(dataclasses.replace(run, concurrency=64)).digest
    assert encode_row(dataclasses.replace(run, n_gpus=run.n_gpus + 1)).digest != digest


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BadInputError, match="not finite"):
        encode_row(dataclasses.replace(RUN, labels={"ttft_p50_s": value}))
    with pytest.raises(BadInputError, match="not finite"):
        encode_row(dataclasses.replace(RUN, concurrency=value))


def test_a_text_that_looks_like_null_is_stored() -> None:
    run = dataclasses.replace(RUN, notes='{"a":null}', workload=":null")
    assert decode_line(encode_row(run).line(0.0)).row == run


def test_what_json_cannot_hold_is_refused() -> None:
    for bad in ({"notes": "\ud800"}, {"n_gpus": np.int64(3)}, {"notes": "x" * LINE_BYTES}):
        with pytest.raises(BadInputError):
            encode_row(dataclasses.replace(RUN, **bad))


def test_an_altered_line_is_told() -> None:
    line = encode_row(RUN).line(0.0).replace(b'"n_gpus":2', b'"n_gpus":4')
    with pytest.raises(UnreadableLineError, match="altered"):
        decode_line(line)


def test_a_line_that_another_tool_reordered_is_still_a_row() -> None:
    line = json.dumps(dict(reversed(json.loads(encode_row(RUN).line(3.0)).items()))).encode()
    assert decode_line(line).row == RUN
    assert digest_of_line(line) == encode_row(RUN).digest


def test_a_newer_schema_and_an_unknown_kind_are_told() -> None:
    fields = msgspec.json.decode(encode_row(RUN).payload)
    newer = _line(fields | {"schema_version": 2})
    with pytest.raises(UnknownKindError, match="inference_run schema 2"):
        decode_line(newer)
    with pytest.raises(UnknownKindError, match="gpu_probe"):
        decode_line(_line(fields | {"kind": "gpu_probe"}))


def _line(fields: dict[str, object]) -> bytes:
    payload = msgspec.json.encode(fields, order="sorted")
    return (
        encode_row(RUN)._replace(digest=hashlib.sha256(payload).digest(), payload=payload).line(0.0)
    )


@given(data=st.binary(max_size=300))
def test_random_bytes_are_no_row(data: bytes) -> None:
    with pytest.raises(UnreadableLineError):
        decode_line(data)
    digest_of_line(data)


def test_deep_nesting_is_no_row_and_no_crash() -> None:
    line = encode_row(RUN).line(0.0)[:-2] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    with pytest.raises(UnreadableLineError):
        decode_line(line)

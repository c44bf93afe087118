"""The jobstats field of a job."""

from __future__ import annotations

import base64
import gzip
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.collect.jobstats import collect_jobstats, read_statistics
from omnipilot.domain import BadInputError, JobStatistics
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
NODE = {
    "total_memory": 8 * GIB, "used_memory": 2 * GIB, "total_time": 40.0, "cpus": 4,
    "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
    "gpu_used_memory": {"0": 60 * GIB, "1": 20 * GIB},
    "gpu_utilization": {"0": 75.0, "1": 25},
}  # fmt: skip
SUMMARY: dict[str, Any] = {"nodes": {"h100n1": NODE}, "total_time": 10, "gpus": 2}


def blob(summary: object) -> str:
    text = json.dumps(summary, separators=(",", ":")).encode()
    return "JS1:" + base64.b64encode(gzip.compress(text)).decode()


def with_node(**change: object) -> dict[str, Any]:
    return {**SUMMARY, "nodes": {"n1": {**NODE, **change}}}


def test_the_captured_field_gives_each_gpu_s_use(shared_dir: Path) -> None:
    text = (shared_dir / "captures" / "jobstats" / "js1_blob.txt").read_text()
    told = read_statistics(text.strip())
    inner = json.loads(gzip.decompress(base64.b64decode(text.strip()[4:])))
    (node,) = inner["nodes"].values()
    assert told.status == "ok"
    assert told.n_nodes == 1
    assert told.elapsed_s == inner["total_time"]
    assert [round(100 * u, 6) for u in told.gpu_utilization_frac] == [
        node["gpu_utilization"][gpu] for gpu in sorted(node["gpu_utilization"])
    ]
    assert [used * GIB for used in told.gpu_memory_used_gib] == [
        node["gpu_used_memory"][gpu] for gpu in sorted(node["gpu_used_memory"])
    ]


def test_units_become_fractions_and_gibibytes() -> None:
    told = read_statistics(blob(SUMMARY))
    assert told.gpu_utilization_frac == (0.75, 0.25)
    assert told.gpu_memory_used_gib == (60.0, 20.0)
    assert told.gpu_memory_total_gib == (80.0, 80.0)
    assert (told.n_cpus, told.cpu_seconds) == (4, 40.0)
    assert (told.memory_used_gib, told.memory_total_gib) == (2.0, 8.0)


def test_gpus_stand_in_the_order_of_nodes_and_numbers() -> None:
    def node(percents: dict[str, int]) -> dict[str, object]:
        return {
            "gpu_utilization": percents,
            "gpu_total_memory": dict.fromkeys(percents, GIB),
            "gpu_used_memory": dict.fromkeys(percents, 0),
        }

    nodes = {"b": node({"10": 40, "2": 30}), "a": node({"1": 20, "0": 10})}
    told = read_statistics(blob({"nodes": nodes, "total_time": 1, "gpus": 4}))
    assert told.gpu_utilization_frac == (0.1, 0.2, 0.3, 0.4)


def test_a_job_without_gpus_and_slices_without_utilisation_are_records() -> None:
    cpu_only = {"total_memory": GIB, "used_memory": 0, "total_time": 1, "cpus": 1}
    told = read_statistics(blob({"nodes": {"n": cpu_only}, "total_time": 5, "gpus": False}))
    assert (told.status, told.gpu_utilization_frac) == ("ok", ())
    sliced = read_statistics(blob(with_node(gpu_utilization={})))
    assert (sliced.status, sliced.gpu_utilization_frac) == ("ok", ())
    assert sliced.gpu_memory_used_gib == (60.0, 20.0)


@pytest.mark.parametrize(
    ("comment", "status"),
    [
        ("", ""),
        ("allocated by hand", ""),
        ("JS1:Short", "short"),
        ("JS1:None", "none"),
        ("js1:short", "short"),
        ("js1:h4siaaaaaaacaw", "damaged"),
        ("JS1:", "damaged"),
        ("JS1:!!!!", "damaged"),
        ("JS1:\N{SNOWMAN}", "damaged"),
        ("JS1:AAAA", "damaged"),
        ("JS1:" + "A" * (2**20 + 4), "oversized"),
    ],
)
def test_what_is_no_record_says_why(comment: str, status: str) -> None:
    assert read_statistics(comment).status == status


@pytest.mark.parametrize(
    "summary",
    [
        [],
        {"total_time": 1},
        {"nodes": {"n": []}},
        with_node(gpu_utilization={"0": 101, "1": 1}),
        with_node(gpu_utilization={"0": -1, "1": 1}),
        with_node(gpu_utilization={"0": 50}),
        with_node(gpu_utilization={"0": None, "1": 1}),
        with_node(gpu_used_memory={"0": 90 * GIB, "1": 1}),
        with_node(gpu_used_memory={"0": 1}),
        with_node(cpus=1.5),
        with_node(total_memory=1e300),
        {**SUMMARY, "total_time": -3},
    ],
)
def test_impossible_numbers_are_damage(summary: object) -> None:
    told = read_statistics(blob(summary))
    assert told.status == "damaged"
    assert told.reason
    assert told.gpu_utilization_frac == ()


def test_a_field_cut_anywhere_is_damage() -> None:
    whole = blob(SUMMARY)
    for n in range(5, len(whole)):
        assert read_statistics(whole[:n]).status == "damaged", n


def test_a_bomb_stops_at_the_limit_and_quickly() -> None:
    packer = zlib.compressobj(9, wbits=31)
    zeros = b" " * 2**20
    packed = b"".join(packer.compress(zeros) for _ in range(700)) + packer.flush()
    comment = "JS1:" + base64.b64encode(packed).decode()
    start_s = time.process_time()
    told = read_statistics(comment)
    assert time.process_time() - start_s < 1.0
    assert told.status == "oversized"


def test_deep_nesting_is_damage_and_no_crash() -> None:
    packed = gzip.compress(b'{"nodes":' + b"[" * 200_000)
    assert read_statistics("JS1:" + base64.b64encode(packed).decode()).status == "damaged"


@settings(max_examples=200)
@given(data=st.data())
def test_flipped_bits_never_crash_and_never_give_impossible_numbers(data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(json.dumps(SUMMARY).encode()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] ^= 1 << data.draw(st.integers(0, 7))
    told = read_statistics("JS1:" + base64.b64encode(packed).decode())
    # The checksum of gzip finds every change of the text; its head holds bytes that mean nothing.
    assert told.status in {"ok", "damaged"}
    if told.status == "ok":
        assert told == read_statistics(blob(SUMMARY))


@settings(max_examples=200)
@given(text=st.text(max_size=300), inner=st.binary(max_size=300))
def test_any_text_and_any_packed_bytes_have_a_status(text: str, inner: bytes) -> None:
    assert read_statistics("JS1:" + text).status in {"ok", "short", "none", "damaged"}
    packed = base64.b64encode(gzip.compress(inner)).decode()
    assert read_statistics("JS1:" + packed).status in {"ok", "damaged"}


def test_a_file_of_fields_gives_rows_with_their_job_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "fields.txt"
    path.write_text(
        "\n".join(
            [
                "JobID|AdminComment",
                f"12|{blob(SUMMARY)}",
                f"12_3|{blob(SUMMARY)}|",
                f"{blob(SUMMARY)}",
                "13|JS1:Short",
                "14|",
                "15|JS1:broken",
                f"alice|{blob(SUMMARY)}",
                f"16|name with blanks|{blob(SUMMARY)}",
            ]
        )
    )
    items = list(collect_jobstats(path))
    rows = [item for item in items if isinstance(item, JobStatistics)]
    assert [row.job_id for row in rows] == ["12", "12_3", ""]
    assert rows[0].gpu_utilization_frac == (0.75, 0.25)
    assert rows[0].elapsed_s == 10.0
    told = {item.line: item.code for item in items if isinstance(item, Rejection)}
    assert told == {
        5: "jobstats short", 7: "jobstats damaged", 8: "JobID unreadable",
        9: "not a jobstats line",
    }  # fmt: skip
    assert "h100n1" not in repr(items)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fields.txt"
    path.write_bytes(b"PK\x03\x04 zip")
    with pytest.raises(BadInputError, match="jobstats"):
        list(collect_jobstats(path))

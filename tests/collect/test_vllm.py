"""Files of vLLM are told apart by their first lines."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from omnipilot.collect.vllm import collect_vllm
from omnipilot.domain import BadInputError, InferenceRun, ServingWindow, StartupRun
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path


def kinds(path: Path) -> set[type]:
    return {type(item) for item in collect_vllm(path)}


def test_real_files_go_to_their_collectors(shared_dir: Path) -> None:
    captures = shared_dir / "captures" / "vllm-0.11.2"
    assert kinds(captures / "bench_serve_c1.json") == {InferenceRun}
    for log in captures.glob("*.log"):
        assert StartupRun in kinds(log)
    pages = [p for p in captures.glob("*") if "metrics" in p.name]
    assert pages
    for page in pages:
        assert ServingWindow in kinds(page)


def test_a_compressed_page_is_told_by_its_text(tmp_path: Path, shared_dir: Path) -> None:
    page = shared_dir / "captures" / "vllm-0.11.2" / "metrics_load_c4.prom"
    (tmp_path / "a").write_bytes(gzip.compress(page.read_bytes()))
    assert kinds(tmp_path / "a") == kinds(page)


def test_a_log_that_begins_with_a_bracket_is_no_json(tmp_path: Path, shared_dir: Path) -> None:
    log = shared_dir / "captures" / "vllm-0.11.2" / "serve.log"
    warning = b"[W1129 13:14:44.123 socket.cpp:200] [c10d] The hostname cannot be retrieved.\n"
    (tmp_path / "a").write_bytes(warning + log.read_bytes())
    assert kinds(tmp_path / "a") == kinds(log)
    bench = (shared_dir / "captures" / "vllm-0.11.2" / "bench_serve_c1.json").read_bytes()
    (tmp_path / "b").write_bytes(b"[\n  " + bench + b"\n]")
    assert kinds(tmp_path / "b") == {InferenceRun}


def test_what_is_none_of_them_is_refused_and_no_row(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"x": 1}))
    assert kinds(tmp_path / "a") == {Rejection}
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(BadInputError, match="is empty"):
        kinds(tmp_path / "b")

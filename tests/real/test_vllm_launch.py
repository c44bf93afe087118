"""A launch of the real vLLM on a CPU, where the developer has one.

OMNIPILOT_VLLM_VENV names a virtual environment with a CPU build of vLLM, OMNIPILOT_VLLM_MODEL a
folder with a tiny model (config and tokenizer, no weights). The package weighs gigabytes, so the
gate does without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import InferenceRun, StartupRun
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

VENV = os.environ.get("OMNIPILOT_VLLM_VENV", "")
MODEL = os.environ.get("OMNIPILOT_VLLM_MODEL", "")


@pytest.mark.skipif(not (VENV and MODEL), reason="set OMNIPILOT_VLLM_VENV and OMNIPILOT_VLLM_MODEL")
def test_a_real_server_is_started_measured_taken_in_and_shown_by_the_next_advice(
    tmp_path: Path,
) -> None:
    variables = ("VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
                 "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
                 "OMP_NUM_THREADS=2")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "omnipilot", "launch", "--model", "Qwen/Qwen2.5-7B-Instruct",
         "--concurrency", "4", "--context", "1024", "--prompt-tokens", "128", "--output-tokens",
         "32", "--arm", "h100-80:1:bf16", "--checkpoint", MODEL, "--local", "--bench",
         "--num-prompts", "12", "--stop-after-bench", "--venv", VENV,
         "--engine-arg=--load-format", "--engine-arg=dummy", "--engine-arg=--enforce-eager",
         *(f"--env={text}" for text in variables), "--home", tmp_path],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [stored.row for stored in Store(tmp_path).rows()]
    assert [row.status for row in rows if isinstance(row, StartupRun)] == ["ok"]
    (run,) = [row for row in rows if isinstance(row, InferenceRun)]
    assert run.labels["output_tokens_per_s"] > 0
    assert (run.prompt_tokens, run.output_tokens) == (128.0, 32.0)
    assert run.stack.engine_version.startswith("0.")
    after = subprocess.run(
        [sys.executable, "-m", "omnipilot", "advise", "--model", "Qwen/Qwen2.5-7B-Instruct",
         "--concurrency", "4", "--context", "1024", "--gpus", "h100-80", "--precisions", "bf16",
         "--format", "json", "--home", tmp_path],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (evidence,) = json.loads(after.stdout)["site_runs"]
    assert (evidence["gpu_kind"], evidence["status"], evidence["n_runs"]) == ("h100-80", "ok", 1)

"""Launches and plans in round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omnipilot.domain import Arm
from omnipilot.domain.engine import EngineParameters
from omnipilot.launch.plan import Plan, PlannedRun
from omnipilot.launch.spec import BenchLoad, LaunchSpec

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "Qwen/Qwen2.5-7B-Instruct"


def launch_of(**changes: Any) -> LaunchSpec:
    """One H100, 8 clients, prompts of 64 tokens and outputs of 16."""
    spec = LaunchSpec(
        run_id="run-1",
        model_id=MODEL,
        checkpoint=MODEL,
        arm=Arm("h100-80", 1, "bf16"),
        parameters=EngineParameters(4096, 0.9, 64, arguments=("--dtype", "bfloat16")),
        concurrency=8,
        context_tokens=4096,
        prompt_tokens=64,
        output_tokens=16,
        bench=BenchLoad(8, 64, 16, 32),
        stop_after_bench=True,
        health_wait_s=30,
        scrape_s=0.2,
    )
    return replace(spec, **changes)


def plan_of(n: int, *, max_gpus: int = 4, budget_node_h: float = 1e9) -> Plan:
    """A plan of n runs that differ in their concurrency, 1 to n."""
    runs = tuple(
        PlannedRun(launch_of(run_id=f"run-{i:04d}", concurrency=i, bench=BenchLoad(i, 64, 16, i)),
                   node_h=0.125, information=1.0, node_share=0.125)
        for i in range(1, n + 1)
    )  # fmt: skip
    return Plan({"concurrency": tuple(map(str, range(1, n + 1)))}, budget_node_h, max_gpus, "v",
                runs, ())  # fmt: skip


def quick_script(spec: LaunchSpec, folder: Path) -> str:
    """A run that takes some milliseconds: notes that it began and ended, and leaves a result.

    The result is of ``concurrency`` requests in one second, so that rows tell runs apart.
    """
    n = spec.concurrency
    result = (
        f'{{"backend":"vllm","model_id":"{spec.model_id}","num_prompts":{n},"request_rate":"inf",'
        f'"max_concurrency":{n},"duration":1.0,"completed":{n},"failed":0,'
        f'"total_input_tokens":{64 * n},"total_output_tokens":{16 * n},'
        f'"request_throughput":{n},"output_throughput":{16 * n},'
        f'"total_token_throughput":{80 * n}}}'
    )
    log = folder.parents[1] / "executions"
    return (
        f"echo began {spec.run_id} >>'{log}'\n"
        f"echo script_start 100 >'{folder}/marks'\n"
        f"echo '{result}' >'{folder}/bench.json'\n"
        f"sleep 0.01\n"
        f"printf 'serve_start 110\\nserve_end 136\\n' >>'{folder}/marks'\n"
        f"echo ended {spec.run_id} >>'{log}'\n"
        f"echo benchmarked >'{folder}/done.part'; mv '{folder}/done.part' '{folder}/done'\n"
    )

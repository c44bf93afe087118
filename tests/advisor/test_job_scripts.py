"""Job scripts of vLLM servers, and what is said of them before they are submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.advisor.job_scripts import ServingJob, gpus_of, read_job_script
from omnipilot.advisor.reviewing import review

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "meta-llama/Llama-3.1-70B-Instruct"


@pytest.mark.parametrize(
    ("script", "job"),
    [
        (f"vllm serve {MODEL}", ServingJob(MODEL)),
        (f"srun apptainer exec --nv x.sif vllm serve {MODEL} -tp 4 --max-model-len 32K",
         ServingJob(MODEL, tensor_parallel=4, max_model_len=32768)),
        (f"python3 -m vllm.entrypoints.openai.api_server --model={MODEL} --dtype half",
         ServingJob(MODEL, dtype="half")),
        (f"M='{MODEL}'\nexport TP=8\nvllm serve $M \\\n  --tensor_parallel_size=${{TP}}",
         ServingJob(MODEL, tensor_parallel=8)),
        (f"#SBATCH --gres=gpu:h100:2 -p big\nvllm serve {MODEL} # --max-model-len 9",
         ServingJob(MODEL, gpu="h100", n_gpus=2, partition="big")),
        (f"#SBATCH -G a100:4\n# OMNIPILOT concurrency=12 context=2048\nvllm serve {MODEL}",
         ServingJob(MODEL, gpu="a100", n_gpus=4, concurrency=12, context_tokens=2048)),
        (f"vllm serve {MODEL} -q awq_marlin --gpu-memory-utilization 0.8 --max-num-seqs 64",
         ServingJob(MODEL, quantization="awq_marlin", memory_utilization_frac=0.8,
                    max_num_seqs=64)),
    ],
)  # fmt: skip
def test_the_options_of_a_server_are_read(script: str, job: ServingJob) -> None:
    assert read_job_script(f"#!/bin/bash\n{script}\n") == job


@pytest.mark.parametrize(
    "script", ["", "sleep 1", "# vllm serve x", "vllm bench serve", "vllm serve $UNKNOWN",
               "echo vllm", "vllm serve"],
)  # fmt: skip
def test_other_jobs_are_none(script: str) -> None:
    assert read_job_script(script) is None


def test_the_command_line_wins_over_the_script() -> None:
    script = f"#SBATCH --gres=gpu:a100:1 --partition=small\nvllm serve {MODEL}"
    job = read_job_script(script, gres="gpu:h100:2", partition="big")
    assert job is not None
    assert (job.gpu, job.n_gpus, job.partition) == ("h100", 2, "big")
    kept = read_job_script(script, gres="shard:3")
    assert kept is not None
    assert (kept.gpu, kept.n_gpus) == ("a100", 1)


@given(st.text(max_size=400))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read_job_script(text)
    read_job_script(f"#SBATCH {text}\nM={text}\nvllm serve {text} --max-model-len {text}")
    gpus_of(text)


@pytest.fixture
def advisor(tmp_path: Path) -> Advisor:
    return Advisor(tmp_path, model=StandInModel())


def test_gpus_that_stay_idle_and_gpus_that_lack_are_told(advisor: Advisor) -> None:
    idle = review(advisor, f"vllm serve {MODEL} -tp 2", gres="gpu:h100-80:4")
    assert idle[0].startswith("the job asks for 4 GPUs and vLLM will use 2")
    lacking = review(advisor, f"vllm serve {MODEL} -tp 4", gres="gpu:h100-80:2")
    assert "it will not start" in lacking[0]


@pytest.mark.parametrize(
    "script",
    [
        f"#SBATCH --gres=gpu:h100:4\nvllm serve {MODEL} -tp 2 --data-parallel-size 2",
        f"#SBATCH -N 2 --gpus-per-node=h100:4\nvllm serve {MODEL} -tp 4 -pp 2",
        f"#SBATCH --nodes=2-4 --gres=gpu:h100:4\nvllm serve {MODEL} -tp 8",
        f"#SBATCH -N 2 --gpus=h100:8\nvllm serve {MODEL} -tp 8",
        f"#SBATCH -n 2 --gpus-per-task=h100:1\nvllm serve {MODEL} -tp 2",
    ],
)
def test_gpus_of_all_nodes_and_all_ranks_count(script: str, advisor: Advisor) -> None:
    assert not [line for line in review(advisor, script) if "asks for" in line]


def test_a_server_of_several_ranks_is_not_taken_for_an_arm_of_one(advisor: Advisor) -> None:
    script = f"#SBATCH --gres=gpu:h100-80:{{}}\nvllm serve {MODEL} -tp 4"
    assert "h100-80 bf16:" in review(advisor, script.format(4))[-1]
    ranks = review(advisor, script.format(8) + " -dp 2")[-1]
    assert "this one" not in ranks
    assert "this is the best" not in ranks


def test_a_server_that_cannot_start_is_told_why(advisor: Advisor) -> None:
    lines = review(advisor, f"vllm serve {MODEL} -tp 1", gres="gpu:h100-80:1")
    assert lines[0].startswith(f"{MODEL} on 1x h100-80 will not start: weights")


def test_an_assumed_load_is_called_so_and_a_told_one_is_not(advisor: Advisor) -> None:
    script = f"vllm serve {MODEL} -tp 4"
    assert "assumed" in review(advisor, script)[-1]
    told = review(advisor, f"#OMNIPILOT concurrency=8 context=4096\n{script}")
    assert told[-1].startswith("at 8 requests at once of up to 4,096 tokens, ")


def test_a_model_that_nobody_knows_gets_no_word(advisor: Advisor) -> None:
    assert review(advisor, "vllm serve /models/ours -tp 4", gres="gpu:h100-80:2") == []

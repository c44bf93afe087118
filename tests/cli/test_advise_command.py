"""``advise``, ``explain``, ``fits`` and ``predict`` with a stand-in cost model."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.cli import app
from omnipilot.domain import TARGET_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16"}"""
REQUEST = (
    "--model", "Qwen/Qwen2.5-7B-Instruct", "--concurrency", "200", "--context", "4096",
)  # fmt: skip
POINTS = ["q10", "q50", "q90", "lower", "upper"]
USD = [
    "serving_value_usd", "compute_usd", "queue_usd", "failure_usd", "slo_usd",
    "kv_saturation_usd", "carbon_usd", "total_usd", "lower_usd", "upper_usd",
]  # fmt: skip
HEADER = "model,gpu,n_gpus,precision,isl,osl,concurrency"
ROW = "Qwen/Qwen2.5-7B-Instruct,H100,1,bf16,512,128,8"

Run = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def measured() -> set[str] | None:
    """GPU kinds that the stand-in knows; all by default."""
    return None


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: set[str] | None,
) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in this process with the stand-in; exit code, stdout, stderr."""
    model = StandInModel(measured=measured)
    monkeypatch.setattr(Advisor, "model", property(lambda _: model))

    def call(*args: object) -> tuple[int, str, str]:
        code = app.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class TestAdvise:
    def test_json_has_the_documented_keys(self, run: Callable[..., Any]) -> None:
        code, out, err = run("advise", *REQUEST, "--format", "json")
        answer = strict(out)
        assert (code, err) == (0, "")
        assert list(answer) == [
            "request", "model_version", "ranked", "infeasible", "abstention", "site_runs",
            "assumptions",
        ]  # fmt: skip
        first = answer["ranked"][0]
        assert list(first) == [
            "arm", "targets", "utility", "confidence", "engine_parameters", "support",
            "usd_per_h", "slo_violation_prob", "rationale",
        ]  # fmt: skip
        assert list(first["arm"]) == ["gpu_kind", "tensor_parallel", "precision", "engine"]
        assert tuple(first["targets"]) == TARGET_NAMES
        assert list(first["targets"]["ttft_p50_s"]) == [*POINTS, "unit", "source"]
        assert sorted(first["utility"]) == sorted(USD)
        assert list(first["support"]) == ["supported", "violations"]
        assert list(answer["infeasible"][0]) == ["arm", "reason_code", "reason"]
        assert answer["abstention"] is None

    def test_the_prompt_takes_three_quarters_of_the_context(self, run: Callable[..., Any]) -> None:
        request = strict(run("advise", *REQUEST, "--format", "json")[1])["request"]
        assert (request["prompt_tokens"], request["output_tokens"]) == (3072, 1024)

    def test_the_table_names_the_best_arm_the_losers_and_the_model(
        self, run: Callable[..., Any]
    ) -> None:
        code, out, _ = run("advise", *REQUEST)
        assert code == 0
        assert "\nTake " in out
        for heading in ("Why this order", "Cannot start", "What would change", "Assumptions"):
            assert f"\n{heading}" in out
        assert "cost model stand-in" in out

    def test_the_table_fits_into_110_columns(self, run: Callable[..., Any]) -> None:
        for command in ("advise", "explain"):
            assert max(map(len, run(command, *REQUEST)[1].splitlines())) <= 110

    def test_top_limits_the_table_and_not_the_data(self, run: Callable[..., Any]) -> None:
        _, table, _ = run("advise", *REQUEST, "--top", "2")
        assert table.count("\n  3  ") == 0
        answers = rows_of(run("advise", *REQUEST, "--top", "2", "--format", "csv")[1])
        assert len(answers) > 2
        assert [int(row["place"]) for row in answers] == list(range(1, len(answers) + 1))

    @pytest.mark.parametrize("measured", [set()])
    def test_an_abstention_exits_with_3_and_names_the_fallback(
        self, run: Callable[..., Any]
    ) -> None:
        code, out, _ = run("advise", *REQUEST, "--format", "json")
        assert code == 3
        abstention = strict(out)["abstention"]
        assert list(abstention) == [
            "reason", "violations", "fallback_rule", "fallback", "probe",
        ]  # fmt: skip
        assert abstention["fallback"]["gpu_kind"]
        assert "\nNo recommendation: " in run("advise", *REQUEST)[1]

    def test_nothing_that_starts_exits_with_3_and_says_so(self, run: Callable[..., Any]) -> None:
        code, out, _ = run(
            "advise", "--model", "Qwen/Qwen2.5-72B-Instruct", "--gpus", "t4-16",
            "--concurrency", 8, "--context", 4096,
        )  # fmt: skip
        assert code == 3
        assert "Nothing starts: " in out

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            (("--weight", "slo"), "TERM=W"),
            (("--weight", "slo=-1"), "-1"),
            (("--weight", "hope=1"), "hope"),
            (("--hours", "nan"), "finite"),
            (("--hours", "0"), "0"),
            (("--slo-ttft-ms", "inf"), "finite"),
            (("--gpus", ","), "at least one"),
            (("--gpus", "A100"), "a100-40, a100-80"),
            (("--prompt-tokens", "5000"), "context"),
            (("--profile", "greedy"), "cost-conscious"),
            (("--model-config", "/no/such/file"), "/no/such/file"),
            (("--engine", "steam"), "steam"),
            (("--top", "0"), "0"),
        ],
    )
    def test_a_wrong_wish_is_one_line_and_exit_code_2(
        self, extra: tuple[str, str], words: str, run: Callable[..., Any]
    ) -> None:
        code, out, err = run("advise", *REQUEST, *extra)
        assert (code, out) == (2, "")
        assert err.startswith("omnipilot: error: ")
        assert err.count("\n") == 1
        assert words in err

    def test_a_config_describes_the_model_that_is_named(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        (tmp_path / "config.json").write_text(CONFIG)
        asked = ("--model-config", tmp_path, "--gpu", "h100-80", "--format", "json")
        alone = json.loads(run("fits", *asked)[1])
        code, out, err = run("fits", *asked, "--model", "Qwen/Qwen2.5-7B-Instruct")
        both = json.loads(out)
        assert code == 0
        assert both["weights_gib_per_gpu"] == alone["weights_gib_per_gpu"]
        assert f"Qwen/Qwen2.5-7B-Instruct is taken to be what {tmp_path} describes" in err
        answer = run(
            "advise", "--model", "own/small", "--model-config", tmp_path, "--concurrency", 8,
            "--context", 1024, "--gpus", "h100-80", "--format", "json", "--no-live",
        )[1]  # fmt: skip
        assert json.loads(answer)["request"]["model_id"] == "own/small"

    @pytest.mark.parametrize("named", [(), ("--model", "here"), ("--model", "config.json")])
    def test_the_config_that_is_given_counts_and_none_that_lies_where_the_command_runs(
        self,
        tmp_path: Path,
        run: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        named: tuple[str, ...],
    ) -> None:
        odd = CONFIG.replace("2048", "1920").replace("32,", "30,").replace("8,", "6,", 1)
        for place, text in (("given", CONFIG), ("here", odd), ("", odd)):
            (tmp_path / place).mkdir(exist_ok=True)
            (tmp_path / place / "config.json").write_text(text)
        monkeypatch.chdir(tmp_path)
        load = ("--concurrency", 8, "--context", 1024, "--gpus", "h100-80", "--no-live")
        asked = ("advise", "--model-config", "given", *named, *load, "--format", "json")
        assert json.loads(run(*asked)[1])["infeasible"] == []
        refused = run("advise", "--model", "here", *load, "--format", "json")[1]
        assert json.loads(refused)["infeasible"] != []

    def test_a_request_without_a_model_is_refused(self, run: Callable[..., Any]) -> None:
        code, _, err = run("advise", "--concurrency", 1, "--context", 100)
        assert code == 2
        assert "--model" in err


class TestExplain:
    def test_json_adds_the_grounds_to_the_keys_of_advise(self, run: Callable[..., Any]) -> None:
        code, out, _ = run("explain", *REQUEST, "--format", "json")
        answer = strict(out)
        assert code == 0
        assert list(answer)[7:] == [
            "economics", "weights", "grounds", "evidence", "turning_points", "loads", "freshness",
        ]  # fmt: skip
        assert len(answer["grounds"]) == len(answer["ranked"])

    def test_the_table_shows_terms_arithmetic_and_evidence(self, run: Callable[..., Any]) -> None:
        _, out, _ = run("explain", *REQUEST, "--weight", "slo=7")
        for words in ("serving_value", "slo, weight 7", "weights ", "round_numbers", "At other"):
            assert words in out


class TestFits:
    def test_json_has_the_documented_keys(self, run: Callable[..., Any]) -> None:
        code, out, _ = run(
            "fits", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "h100-80", "--format", "json"
        )
        answer = strict(out)
        assert code == 0
        assert answer["verdict"] == "fits"
        assert list(answer) == [
            "verdict", "reason_code", "reason", "weights_gib_per_gpu", "activation_gib",
            "graph_gib", "kv_gib_per_gpu", "kv_cache_tokens", "max_model_len_possible",
            "max_concurrency", "assumptions",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (("--gpu", "h100-80", "--tp", "0"), "0"),
            (("--gpu", "abacus"), "abacus"),
            (("--gpu", "h100-80", "--gpu-memory-utilization", "1.5"), "1.5"),
            (("--gpu", "h100-80", "--kv-dtype", "int1"), "int1"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(
        self, args: tuple[str, ...], words: str, run: Callable[..., Any]
    ) -> None:
        code, out, err = run("fits", "--model", "Qwen/Qwen2.5-7B-Instruct", *args)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


class TestPredict:
    def written(self, tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
        path = tmp_path / "rows.csv"
        path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
        return path

    def test_csv_has_one_row_a_question_in_order(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        unknown = ROW.replace("H100", "abacus")
        broken = ROW.replace(",512,", ",many,")
        code, out, err = run("predict", "--rows", self.written(tmp_path, ROW, unknown, broken, ROW))
        answers = rows_of(out)
        assert (code, err) == (0, "")
        assert [row["row"] for row in answers] == ["0", "1", "2", "3"]
        assert [row["verdict"] for row in answers] == ["fits", "unknown", "unknown", "fits"]
        columns = [f"{name}_{point}" for name in TARGET_NAMES for point in POINTS]
        assert list(answers[0]) == [
            "row", "verdict", "supported", "confidence", *columns, "reason",
        ]  # fmt: skip
        assert all(float(answers[0][column]) > 0 for column in columns)
        assert all(answers[1][column] == "" for column in columns)
        assert "abacus" in answers[1]["reason"]
        assert "isl" in answers[2]["reason"]
        assert answers[0] | {"row": "3"} == answers[3]

    def test_more_requests_than_the_kv_cache_holds_are_queued_not_refused(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        row = "Qwen/Qwen2.5-32B-Instruct,A100,2,bf16,8000,192,5000"
        rows = self.written(tmp_path, f"{row},80", header=f"{HEADER},gpu_mem_gb")
        (answer,) = rows_of(run("predict", "--rows", rows)[1])
        assert answer["verdict"] == "fits"
        assert float(answer["aggregate_tokens_per_s_q50"]) > 0

    def test_a_launch_that_cannot_start_has_numbers_of_low_confidence(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        rows = self.written(tmp_path, "Qwen/Qwen2.5-72B-Instruct,T4,1,fp16,512,128,8")
        (answer,) = rows_of(run("predict", "--rows", rows)[1])
        assert (answer["verdict"], answer["confidence"]) == ("oom", "low")
        assert answer["supported"] == "false"
        assert "weights" in answer["reason"]

    def test_json_and_gzip_say_the_same_as_csv(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        rows = self.written(tmp_path, ROW, ROW.replace("H100", "abacus"))
        packed = tmp_path / "rows.csv.gz"
        packed.write_bytes(gzip.compress(rows.read_bytes()))
        as_csv = rows_of(run("predict", "--rows", rows)[1])
        as_json = strict(run("predict", "--rows", packed, "--format", "json")[1])
        assert [list(item) for item in as_json] == [list(as_csv[0])] * 2
        number = as_json[0]["ttft_p50_s_q50"]
        assert number == pytest.approx(float(as_csv[0]["ttft_p50_s_q50"]))
        assert as_json[1]["ttft_p50_s_q50"] is None

    def test_chunks_make_no_difference(
        self, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.written(tmp_path, *(ROW.replace(",8", f",{n}") for n in (1, 2, 4, 8, 16)))
        whole = run("predict", "--rows", rows)[1]
        monkeypatch.setattr("omnipilot.advisor.predict.RowPredictor.file.__defaults__", (2,))
        assert run("predict", "--rows", rows)[1] == whole

    @pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"PK\x03\x04", b"\0" * 100], ids=str)
    def test_a_file_that_is_no_table_is_one_line_and_exit_code_2(
        self, content: bytes, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        path = tmp_path / "rows.csv"
        path.write_bytes(content)
        code, out, err = run("predict", "--rows", path)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1

    def test_a_header_without_rows_answers_with_a_header(
        self, tmp_path: Path, run: Callable[..., Any]
    ) -> None:
        rows = self.written(tmp_path)
        assert rows_of(run("predict", "--rows", rows)[1]) == []
        assert strict(run("predict", "--rows", rows, "--format", "json")[1]) == []


def test_an_answer_at_which_no_arm_pays_says_so_and_what_should_decide(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    said = "No arm earns what it costs"
    _, worthless, _ = run("advise", *REQUEST, "--value-per-token", "1e-12")
    worthless = " ".join(worthless.split())
    assert f"{said} at this value of a token: the first one loses" in worthless
    assert "let limits on TTFT and TPOT decide" in worthless
    code, text, _ = run("advise", *REQUEST, "--value-per-token", "1e-12", "--format", "json")
    assert code == 0
    arms = [a for a in strict(text)["ranked"] if a["confidence"] != "low"]
    most = max(arms, key=lambda a: a["targets"]["aggregate_tokens_per_s"]["q50"] / a["usd_per_h"])[
        "arm"
    ]
    label = f"{most['tensor_parallel']}x {most['gpu_kind']} {most['precision']}"
    assert f"tokens for the money: {label} has most" in worthless
    for limits in (("--slo-ttft-ms", "1000"), ("--profile", "latency-first")):
        _, limited, _ = run("advise", *REQUEST, "--value-per-token", "1e-12", *limits)
        limited = " ".join(limited.split())
        assert said in limited
        assert "for the money" not in limited
    _, paying, _ = run("advise", *REQUEST, "--value-per-token", "1e-3")
    assert said not in " ".join(paying.split())

"""``omnipilot data`` from the outside: real files, a real folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from omnipilot.cli import app

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "source,engine,model,gpu,n_gpus,precision,isl,osl,concurrency,status,out_tok_s"
GOOD = "site,vllm,Qwen/Qwen2.5-7B-Instruct,H100,1,bf16,512,128,8,ok,900"
BAD = "site,vllm,Qwen/Qwen2.5-7B-Instruct,H100,1,bf16,512,128,8,ok,nan"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join((HEADER, *lines)) + "\n", encoding="utf-8")
    return path


def run_json(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert app.run([*map(str, args), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_import_counts_accepted_duplicate_and_rejected_rows(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path, GOOD, GOOD, BAD)
    report = run_json(capsys, "data", "import", rows, "--home", home)
    assert (report["accepted"], report["duplicate"], report["rejected"]) == (1, 1, 1)
    assert report["rejections"] == [{"line": 4, "reason": "out_tok_s is nan, not a finite number"}]


def test_columns_that_are_not_read_are_named(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADER},tokens_per_s,\x1b[31m\n{GOOD},900,1\n", encoding="utf-8")
    assert app.run(["data", "import", str(path), "--home", str(home)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1 accepted")
    assert "columns not read: tokens_per_s, " in told.err
    assert "\x1b" not in told.err
    report = run_json(capsys, "data", "import", path, "--home", home)
    assert report["unread_columns"] == ["tokens_per_s", "\x1b[31m"]


def test_names_that_the_catalogue_does_not_know_are_told_with_close_ones(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(
        tmp_path,
        GOOD,
        GOOD.replace("H100", "A1000"),
        GOOD.replace("H100", "A1000").replace("900", "901"),
        GOOD.replace("H100", "A100"),
        GOOD.replace("Instruct", "Instrukt"),
        GOOD.replace("bf16", "bf61"),
        GOOD.replace("bf16", ""),
    )
    report = run_json(capsys, "data", "import", rows, "--home", home)
    assert report["accepted"] == 7
    names = report["unknown_names"]
    told = {(n["column"], n["name"]): n for n in names}
    assert told.keys() == {
        ("gpu", "A1000"), ("gpu", "A100"), ("precision", "bf61"),
        ("model", "Qwen/Qwen2.5-7B-Instrukt"),
    }  # fmt: skip
    assert names[0]["name"] == "A1000"
    assert names[0]["rows"] == 2
    assert "a100-80" in names[0]["close"]
    assert told["gpu", "A100"]["ambiguous"] is True
    assert told["precision", "bf61"]["close"] == ["bf16"]
    assert app.run(["data", "import", str(rows), "--home", str(home)]) == 0
    said = capsys.readouterr().err
    assert "gpu 'A1000' (2 rows) is not in the catalogue, close: a100-40" in said
    assert "gpu 'A100' (1 row) is ambiguous: say one of a100-40" in said
    assert "close: Qwen/Qwen2.5-7B-Instruct" in said
    assert "no fit learns from them" in said


def test_names_that_the_site_adds_are_known(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path, GOOD.replace("Qwen/Qwen2.5-7B-Instruct", "ours/model"))
    (unknown,) = run_json(capsys, "data", "import", rows, "--home", home)["unknown_names"]
    assert unknown["name"] == "ours/model"
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32,
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    (home / "models").mkdir()
    (home / "models" / "ours--model.json").write_text(json.dumps(config), encoding="utf-8")
    assert run_json(capsys, "data", "import", rows, "--home", home)["unknown_names"] == []


def test_importing_twice_stores_once(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path, GOOD)
    run_json(capsys, "data", "import", rows, "--home", home)
    report = run_json(capsys, "data", "import", rows, "--home", home)
    assert (report["accepted"], report["duplicate"]) == (0, 1)
    assert run_json(capsys, "data", "stats", "--home", home)["rows"] == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\x89PNG\r\n\x1a\n\0\0", b"a,b\n1,2\n", b"\xff\xfea\0", b"x" * 3_000_000],
    ids=["empty", "binary", "other columns", "UTF-16", "one long line"],
)
def test_a_file_that_is_no_table_is_one_line_and_leaves_no_store(
    content: bytes, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert app.run(["data", "import", str(path), "--home", str(home)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("omnipilot: error: ")
    assert err.count("\n") == 1
    assert not home.exists()


def test_a_file_of_bad_rows_only_is_reported_and_exits_with_2(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["data", "import", str(written(tmp_path, BAD)), "--home", str(home)]) == 2
    out, err = capsys.readouterr()
    assert "line 2" in out
    assert "no row" in err


def test_the_stats_of_a_folder_that_does_not_exist_are_zero_and_do_not_make_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, "data", "stats", "--home", home)["rows"] == 0
    assert not home.exists()


def test_omnipilot_home_names_the_folder(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIPILOT_HOME", str(home))
    run_json(capsys, "data", "import", written(tmp_path, GOOD))
    assert (home / "history.jsonl").exists()


@pytest.mark.parametrize("form", ["table", "csv"])
def test_stats_speak_table_and_csv_alike(
    form: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "data", "import", written(tmp_path, GOOD), "--home", home)
    assert app.run(["data", "stats", "--home", str(home), "--format", form]) == 0
    assert "Qwen/Qwen2.5-7B-Instruct" in capsys.readouterr().out

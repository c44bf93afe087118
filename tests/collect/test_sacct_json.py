"""The JSON of sacct --json: shapes of several versions, damage, text without line ends."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacct_builders import SUBMIT_S, codes, collect, one, rows

from omnipilot.domain import BadInputError, ClusterJob, OmniPilotError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

GPUS = [
    {"type": "cpu", "name": "", "id": 1, "count": 4},
    {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
    {"type": "gres", "name": "gpu:h100", "id": 1003, "count": 2},
]
JOB: dict[str, Any] = {
    "job_id": 100, "account": "acct_alice", "user": "alice", "group": "alice", "cluster": "lab",
    "name": "train", "partition": "gpu_h100", "allocation_nodes": 1, "kill_request_user": "",
    "comment": {"administrator": "", "job": "secret", "system": ""},
    "exit_code": {"status": ["SUCCESS"], "return_code": {"set": True, "number": 0}},
    "state": {"current": ["COMPLETED"], "reason": "None"},
    "submit_line": "sbatch /data/alice/run.sh", "working_directory": "/data/alice",
    "time": {
        "submission": SUBMIT_S, "eligible": SUBMIT_S + 10, "start": SUBMIT_S + 70,
        "end": SUBMIT_S + 3670, "elapsed": 3600, "limit": {"set": True, "number": 1440},
    },
    "tres": {"allocated": GPUS, "requested": GPUS},
    "steps": [{"tres": {"allocated": GPUS}, "state": "COMPLETED", "nodes": {"list": ["h100n1"]}}],
}  # fmt: skip
quick = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def document(*jobs: Any, indent: int | None = 2) -> str:
    return json.dumps({"meta": {"slurm": {}}, "errors": [], "jobs": list(jobs)}, indent=indent)


def job(**change: Any) -> dict[str, Any]:
    return {**JOB, **change}


def times(**change: Any) -> dict[str, Any]:
    return {**JOB, "time": {**JOB["time"], **change}}


def read_one(tmp_path: Path, record: object) -> ClusterJob:
    (item,) = collect(tmp_path / "j", document(record))
    assert isinstance(item, ClusterJob), item
    return item


def test_a_job_reads_as_it_does_from_text(tmp_path: Path) -> None:
    told = read_one(tmp_path, JOB)
    wanted = one(tmp_path / "t")
    assert told == wanted


@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4, 8])
def test_any_indentation_and_none_are_read(tmp_path: Path, indent: int | None) -> None:
    told = rows(collect(tmp_path / "j", document(JOB, job(job_id=7), indent=indent)))
    assert [row.job_id for row in told] == ["100", "7"]


@pytest.mark.parametrize(
    ("record", "field", "wanted"),
    [
        (job(state={"current": "FAILED"}), "state", "FAILED"),
        (job(state=["FAILED"]), "state", "FAILED"),
        (job(state={"current": ["PENDING", "REQUEUED"]}), "state", "REQUEUED"),
        (job(state={"current": "CANCELLED"}, kill_request_user="alice"), "ended_by", "user"),
        (job(state={"current": "CANCELLED"}, kill_request_user="root"), "ended_by", "system"),
        (job(state={"current": "CANCELLED"}, kill_request_user=None), "ended_by", ""),
        (job(exit_code={"status": "ERROR", "return_code": 3}), "exit_code", 3),
        (
            job(
                exit_code={
                    "status": ["SIGNALED"],
                    "return_code": {"set": False},
                    "signal": {"id": {"set": True, "number": 9}},
                }
            ),
            "exit_signal",
            9,
        ),
        (job(exit_code={"status": "SIGNALED", "signal": {"signal_id": 15}}), "exit_signal", 15),
        (
            job(state={"current": "FAILED"}, exit_code={"status": "SUCCESS", "return_code": 0}),
            "exit_code",
            -1,
        ),
        (job(exit_code=None), "exit_code", -1),
        (job(array={"job_id": 90, "task_id": {"set": True, "number": 4}}), "job_id", "90_4"),
        (job(array={"job_id": 90, "task_id": 4}), "job_id", "90_4"),
        (
            job(array={"job_id": 90, "task_id": {"set": False, "number": 0}, "task": "2-5%2"}),
            "n_tasks",
            4,
        ),
        (job(array={"job_id": 0, "task_id": None}), "job_id", "100"),
        (job(het={"job_id": 99, "job_offset": {"set": True, "number": 1}}), "job_id", "99+1"),
        (job(het={"job_id": 99, "job_offset": 1}), "raw_job_id", 100),
        (job(restart_cnt=2), "restarts", 2),
        (times(limit={"set": True, "infinite": True, "number": 0}), "time_limit_s", 0),
        (times(limit=4294967295), "time_limit_s", 0),
        (times(limit=60), "time_limit_s", 3600),
        (times(start={"set": True, "infinite": False, "number": SUBMIT_S + 70}), "elapsed_s", 3600),
        (job(tres={"allocated": "cpu=1,gres/gpu:a100=3,gres/gpu=3"}), "gpu", "a100"),
        (job(tres=None), "n_gpus", 0),
        (job(comment={"administrator": "JS1:Short"}), "jobstats", "short"),
        (job(comment="text"), "jobstats", ""),
        (job(name="vllm-x"), "job_class", "vllm"),
        (job(future_member={"deep": [1, 2, {"x": None}]}), "state", "COMPLETED"),
    ],
)
def test_members_of_several_versions_mean_the_same(
    tmp_path: Path, record: dict[str, Any], field: str, wanted: object
) -> None:
    assert getattr(read_one(tmp_path, record), field) == wanted


def test_a_job_that_never_started_keeps_what_it_asked_for(tmp_path: Path) -> None:
    record = times(start=0, elapsed=0)
    record["state"] = {"current": ["CANCELLED"]}
    record["tres"] = {"allocated": [], "requested": GPUS}
    told = read_one(tmp_path, record)
    assert (told.start_s, told.n_gpus, told.gpu) == (0, 2, "h100")


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (job(state={"current": ["RUNNING"]}), "not ended"),
        (job(partition="", name="allocation"), "not recorded whole"),
        (job(state={"current": []}), "State unreadable"),
        (job(state={"current": ["GONE"]}), "State unreadable"),
        (job(job_id=0), "JobID unreadable"),
        (job(job_id=-4), "job_id out of range"),
        (job(job_id=1e300), "JobID unreadable"),
        (job(job_id=1.5), "unknown shape"),
        (job(job_id="x"), "unknown shape"),
        (job(time=[1, 2]), "unknown shape"),
        ({"time": {}}, "unknown shape"),
        ("text", "damaged JSON"),
        (times(end=0), "End blank"),
        (times(end=SUBMIT_S), "times contradictory"),
        (times(elapsed=99999), "times contradictory"),
        (times(elapsed=-1), "elapsed out of range"),
        (times(submission=5), "time out of range"),
        (times(submission=10**30), "Submit blank"),
        (times(limit=10**12), "limit out of range"),
        (job(partition="a/b"), "Partition unreadable"),
        (job(array={"job_id": 9, "task": "1-999999999"}), "JobID unreadable"),
        (
            job(tres={"allocated": [{"type": "gres", "name": "gpu", "count": -2}]}),
            "TRES count out of range",
        ),
    ],
)
def test_a_job_that_cannot_be_is_told_by_its_class(
    tmp_path: Path, record: object, code: str
) -> None:
    told = collect(tmp_path / "j", document(JOB, record, JOB))
    assert codes(told) == [code]
    assert len(rows(told)) == 2


def test_a_damaged_job_spoils_only_itself(tmp_path: Path) -> None:
    text = document(JOB, job(name="BROKEN"), job(job_id=7)).replace('"BROKEN"', "BROKEN")
    told = collect(tmp_path / "j", text)
    assert codes(told) == ["damaged JSON"]
    assert [row.job_id for row in rows(told)] == ["100", "7"]


def test_damage_between_jobs_is_told_and_reading_goes_on(tmp_path: Path) -> None:
    text = document(JOB, job(job_id=7), job(job_id=8)).replace("\n    },\n", "\n    }#\n", 1)
    told = collect(tmp_path / "j", text)
    assert codes(told) == ["damaged JSON"]
    assert [row.job_id for row in rows(told)] == ["100", "7", "8"]


def test_a_list_cut_short_is_told_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = document(JOB, job(job_id=7), job(job_id=8))
    end = whole.rindex("]")
    start = whole.index("{", whole.index('"jobs"'))
    for cut in range(start + 1, end, 37):
        told = collect(tmp_path / "j", whole[:cut])
        assert codes(told) == ["damaged JSON"], cut
    assert codes(collect(tmp_path / "j", whole)) == []


def test_an_empty_list_is_no_error(tmp_path: Path) -> None:
    assert collect(tmp_path / "j", document()) == []
    assert collect(tmp_path / "j", '{"jobs": [ ], "meta": {}}') == []


def test_a_text_that_mentions_jobs_is_not_the_list(tmp_path: Path) -> None:
    text = json.dumps({"meta": {"command": ['x "jobs": [ {']}, "jobs": [JOB]}, indent=2)
    assert len(rows(collect(tmp_path / "j", text))) == 1


@pytest.mark.parametrize(
    "content", ["{", '{"jobs": {}}', '{"jobs": [1, ', "[]", '{"jobs": [{"job_id": 1}'],
)  # fmt: skip
def test_what_is_no_such_json_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadInputError, match="sacct --json"):
        collect(tmp_path / "j", content)


def test_jobs_larger_than_a_block_are_joined(tmp_path: Path) -> None:
    big = job(steps=[{"x": "y" * 700_000}] * 3)
    told = collect(tmp_path / "j", document(big, JOB, big, JOB))
    assert len(rows(told)) == 4


@pytest.mark.parametrize("indent", [None, 2])
def test_deep_nesting_is_damage_and_no_crash(tmp_path: Path, indent: int | None) -> None:
    text = document(JOB, job(steps="DEEP"), indent=indent)
    text = text.replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    start_s = time.process_time()
    if indent is None:
        with pytest.raises(BadInputError, match="damaged JSON"):
            collect(tmp_path / "j", text)
    else:
        assert codes(collect(tmp_path / "j", text)) == ["damaged JSON"]
    assert time.process_time() - start_s < 1.0


def test_names_paths_and_command_lines_are_not_kept(tmp_path: Path) -> None:
    shown = repr(read_one(tmp_path, JOB))
    assert [
        w for w in ("alice", "secret", "sbatch", "/data", "h100n1", "train") if w in shown
    ] == []


@quick
@given(seed=st.integers(0, 2**32), n=st.integers(1, 10), pretty=st.booleans())
def test_damaged_json_gives_sound_rows_or_reasons(
    tmp_path: Path, seed: int, n: int, *, pretty: bool
) -> None:
    rng = random.Random(seed)  # noqa: S311 - damage, not secrets
    jobs = [job(job_id=i) for i in range(1, 6)]
    content = bytearray(document(*jobs, indent=2 if pretty else None).encode())
    for _ in range(n):
        at = rng.randrange(len(content))
        match rng.randrange(5):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                del content[at : at + rng.randrange(1, 200)]
            case 2:
                content[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
            case 3:
                content[at:at] = b"9" * rng.randrange(1, 400)
            case _:
                content[at] = 0
        content = content or bytearray(b"x")
    try:
        told = collect(tmp_path / "j", bytes(content))
    except OmniPilotError:
        return
    for item in told:
        if isinstance(item, Rejection):
            assert item.code
            assert item.reason
        else:
            assert item.end_s >= item.start_s
            assert 0 <= item.n_gpus <= 100_000
            assert "alice" not in repr(item)


@quick
@given(
    record=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(sorted(JOB)), inner, max_size=5)
        ),
        max_leaves=12,
    ),
    member=st.sampled_from(sorted(JOB)),
)
def test_members_of_any_shape_give_a_row_or_a_reason(
    tmp_path: Path, record: object, member: str
) -> None:
    (item,) = collect(tmp_path / "j", document(job(**{member: record})))
    assert isinstance(item, (ClusterJob, Rejection))

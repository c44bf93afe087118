"""The text of sacct -P: columns, odd values, names that hold the delimiter."""

from __future__ import annotations

import gzip
import random
import time
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacct_builders import RECORD, SUBMIT_S, TRES, codes, collect, fault, one, rows, text

from omnipilot.collect.sacct_text import COLUMNS
from omnipilot.domain import BadInputError, ClusterJob, OmniPilotError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

BLOB = (
    "JS1:H4sIAAAAAAACA1WOzQ6DIBCE32XPptkFWcCXMaaSlkTFVDy0hncv/rQJt5nsfLOzwRR6t0CzwZMQJ9pVDLEb2t"
    "GN4fWGxihjrayVFRWsi+v/ByXZaLQksLqQ6EcHjaBbXcF9XnNtFo95bcvGDXCvVQINWmtyhgqfTqh4djCahVTMVuHJ"
    "aCakWpHW/GOiH/yniz5MF8PyJo4wU0qpXCoZ8eDyUpG+1s4H+gwBAAA="
)
quick = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@given(order=st.permutations(list(RECORD)))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_may_stand_in_any_order_and_case(tmp_path: Path, order: list[str]) -> None:
    wanted = one(tmp_path / "a")
    header, _, record = text({}, columns=order).partition("\n")
    assert collect(tmp_path / "b", f"{header.upper()}\n{record}") == [wanted]


@pytest.mark.parametrize("delimiter", ["|", "\t", ",,", ";", "\x1f", "@@"])
def test_other_delimiters_and_a_trailing_one_are_read(tmp_path: Path, delimiter: str) -> None:
    columns = [c for c in RECORD if "TRES" not in c] + ["AllocTRES"]
    content = text({}, {"JobID": "2"}, columns=columns, delimiter=delimiter)
    trailing = "".join(f"{line}{delimiter}\n" for line in content.splitlines())
    told = rows(collect(tmp_path / "a", content))
    assert [job.job_id for job in told] == ["100", "2"]
    assert rows(collect(tmp_path / "b", trailing)) == told


def test_gzip_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    wanted = collect(tmp_path / "a", text({}))
    content = b"\xef\xbb\xbf" + text({}).replace("\n", "\r\n").encode()
    assert collect(tmp_path / "b", content) == wanted
    assert collect(tmp_path / "c", gzip.compress(content)) == wanted


@pytest.mark.parametrize("dropped", ["State", "Submit", "Start", "End"])
def test_a_column_that_is_needed_and_missing_is_named(tmp_path: Path, dropped: str) -> None:
    columns = [c for c in RECORD if c != dropped]
    with pytest.raises(BadInputError, match=f"lacks the columns {dropped}: run sacct"):
        collect(tmp_path / "a", text({}, columns=columns))


def test_few_columns_are_enough_and_the_proposed_ones_suffice(tmp_path: Path) -> None:
    few = ["JobIDRaw", "State", "Submit", "Start", "End", "ReqTRES"]
    (job,) = rows(collect(tmp_path / "a", text({}, columns=few)))
    assert (job.job_id, job.gpu, job.n_gpus, job.elapsed_s) == ("100", "h100", 2, 3600)
    assert (job.exit_code, job.job_class, job.queue_wait_s) == (-1, "", None)
    proposed = {**RECORD, "TimelimitRaw": "1440"}
    content = "|".join(COLUMNS) + "\n" + "|".join(proposed[c] for c in COLUMNS) + "\n"
    assert rows(collect(tmp_path / "b", content)) == [one(tmp_path / "c")]


def test_a_wait_is_taken_from_planned_where_eligible_is_not_printed(tmp_path: Path) -> None:
    for name in ("Planned", "Reserved"):
        columns = [*(c for c in RECORD if c != "Eligible"), name]
        (job,) = rows(collect(tmp_path / "a", text({name: "00:01:00"}, columns=columns)))
        assert job.queue_wait_s == 60


@pytest.mark.parametrize(
    ("column", "value", "field", "wanted"),
    [
        ("State", "CANCELLED by 1002", "ended_by", "user"),
        ("State", "CANCELLED by 0", "ended_by", "system"),
        ("State", "CANCELLED", "ended_by", ""),
        ("State", "BOOT_FAIL", "state", "BOOT_FAIL"),
        ("ExitCode", "137:9", "exit_signal", 9),
        ("Timelimit", "1-02:03:04", "time_limit_s", 93784),
        ("Timelimit", "UNLIMITED", "time_limit_s", 0),
        ("Timelimit", "Partition_Limit", "time_limit_s", 0),
        ("JobID", "100_4", "job_id", "100_4"),
        ("JobID", "100+1", "job_id", "100+1"),
        ("JobID", "100_[2-3,7%2]", "n_tasks", 3),
        ("JobID", "100_[0-10:5]", "n_tasks", 3),
        ("AllocTRES", "cpu=1,gres/gpu=3", "n_gpus", 3),
        ("AllocTRES", "cpu=1,gres/gpu=3", "gpu", ""),
        ("AllocTRES", "gres/gpu:a100=1,gres/gpu:h100=2,gres/gpu=3", "gpu", "a100+h100"),
        ("AllocTRES", "gres/gpu:a100_3g.20gb=2", "gpu", "a100_3g.20gb"),
        ("AllocTRES", "gres/gpu=2,gres/gpu:h100=2", "n_gpus", 2),
        ("AllocTRES", "cpu=4,gres/shard:h100=8,mem=4G", "n_gpus", 0),
        ("AllocTRES", "cpu=8,gres/gpu:a100=1,gres/gpu=1,gres/gpumem=40G", "n_gpus", 1),
        ("AllocTRES", "gres/gpu=2,gres/gpu_mem:a100=120000,gres/gpuutil=99", "gpu", ""),
        ("JobName", "vLLM-qwen", "job_class", "vllm"),
        ("JobName", "vllm-qwen+", "job_class", "vllm"),
        ("JobName", "наука-модель", "job_class", "other"),
        ("JobName", "", "job_class", ""),
        ("AdminComment", "JS1:None", "jobstats", "none"),
        ("AdminComment", BLOB, "jobstats", "ok"),
        ("AdminComment", BLOB[:-9], "jobstats", "damaged"),
        ("AdminComment", "moved by hand", "jobstats", ""),
        ("Eligible", "Unknown", "queue_wait_s", None),
        ("Partition", "gpu_a,gpu_b", "partition", "gpu_a,gpu_b"),
    ],
)
def test_values_mean_what_slurm_s_manual_says(
    tmp_path: Path, column: str, value: str, field: str, wanted: object
) -> None:
    change = {column: value}
    if column == "AllocTRES":
        change["ReqTRES"] = value
    assert getattr(one(tmp_path / "a", **change), field) == wanted


def test_a_job_cancelled_before_it_started_keeps_what_it_asked_for(tmp_path: Path) -> None:
    for start in ("None", "Unknown", ""):
        job = one(tmp_path / "a", State="CANCELLED by 5", Start=start, ElapsedRaw="0", AllocTRES="")
        assert (job.start_s, job.n_gpus, job.gpu, job.queue_wait_s) == (0, 2, "h100", None)


def test_a_run_told_twice_differently_is_refused(tmp_path: Path) -> None:
    columns = [*RECORD, "Elapsed"]
    (told,) = rows(collect(tmp_path / "a", text({"Elapsed": "01:00:00"}, columns=columns)))
    assert told == one(tmp_path / "a")
    wrong = collect(tmp_path / "a", text({"Elapsed": "00:59:59"}, columns=columns))
    assert codes(wrong) == ["times contradictory"]


def test_seconds_suspended_are_no_contradiction(tmp_path: Path) -> None:
    assert one(tmp_path / "a", ElapsedRaw="60").elapsed_s == 60


def test_times_without_an_offset_are_of_the_zone_given(tmp_path: Path) -> None:
    local = {
        "Submit": "2026-11-29T13:10:00", "Eligible": "2026-11-29T13:10:10",
        "Start": "2026-11-29T13:11:10", "End": "2026-11-29T14:11:10",
    }  # fmt: skip
    (utc,) = rows(collect(tmp_path / "a", text(local)))
    assert utc == one(tmp_path / "a")
    (york,) = rows(collect(tmp_path / "a", text(local), zone=ZoneInfo("America/New_York")))
    assert york.submit_s == SUBMIT_S + 5 * 3600
    offset = {column: f"{value}+0000" for column, value in local.items()}
    (same,) = rows(collect(tmp_path / "a", text(offset), zone=ZoneInfo("America/New_York")))
    assert same == utc


def test_an_hour_lost_to_daylight_saving_is_no_contradiction(tmp_path: Path) -> None:
    local = {
        "Submit": "2026-10-25T02:50:00", "Eligible": "2026-10-25T02:50:00",
        "Start": "2026-10-25T02:50:00", "End": "2026-10-25T02:10:00", "ElapsedRaw": "1200",
    }  # fmt: skip
    (job,) = rows(collect(tmp_path / "a", text(local), zone=ZoneInfo("Europe/Berlin")))
    assert job.elapsed_s == 1200
    # A job that ran for a minute cannot have ended forty minutes before it started.
    short = local | {"ElapsedRaw": "60"}
    assert codes(collect(tmp_path / "a", text(short))) == ["times contradictory"]


@pytest.mark.parametrize(
    ("eligible", "start", "end", "elapsed_s", "wait_s", "ran_s"),
    [
        ("02:50", "02:10", "04:10", 7200, 1200, 7200),
        ("01:50", "02:10", "03:10", 3600, 80 * 60, 3600),
        ("01:50", "02:10", "03:10", 3599, 80 * 60, 3600),
        ("01:50", "02:10", "03:10", 7200, 1200, 7200),
        ("01:20", "01:30", "02:30", 7200, 600, 7200),
        ("01:20", "01:30", "02:30", 3600, 600, 3600),
        ("01:20", "01:30", "02:30", 7000, 600, 7200),  # suspended for a while
        ("02:50", "02:10", "02:20", 600, 1200, 600),
        ("02:20", "02:30", "03:00", 5400, 600, 5400),
        ("02:20", "02:30", "03:00", 1000, 600, 5400),  # suspended: both fit, the first counts
    ],
)
def test_a_time_in_the_hour_that_clocks_show_twice_is_the_one_that_fits(
    tmp_path: Path, eligible: str, start: str, end: str, elapsed_s: int, wait_s: int, ran_s: int
) -> None:
    columns = {"Submit": eligible, "Eligible": eligible, "Start": start, "End": end}
    local = {name: f"2026-10-25T{clock}:00" for name, clock in columns.items()}
    content = text({**local, "ElapsedRaw": str(elapsed_s)})
    (job,) = rows(collect(tmp_path / "a", content, zone=ZoneInfo("Europe/Berlin")))
    assert job.queue_wait_s == wait_s
    assert job.end_s - job.start_s == ran_s


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("State", "RUNNING", "not ended"),
        ("State", "PENDING", "not ended"),
        ("State", "OUT_OF_ME+", "State cut"),
        ("State", "GONE", "State unreadable"),
        ("State", "", "State unreadable"),
        ("JobID", "12a", "JobID unreadable"),
        ("JobID", "12.batch", "JobID unreadable"),
        ("JobID", "12_[1-99999999999]", "JobID unreadable"),
        ("JobID", "12_[5-1]", "JobID unreadable"),
        ("JobID", "12_[1-9:0]", "JobID unreadable"),
        ("Submit", "Unknown", "Submit blank"),
        ("Submit", "yesterday", "time unreadable"),
        ("Submit", "2026-11-29", "time unreadable"),
        ("Submit", "5", "time out of range"),
        ("Submit", "9" * 400, "time out of range"),
        ("End", "Unknown", "End blank"),
        ("End", str(SUBMIT_S + 60), "times contradictory"),
        ("ElapsedRaw", "3700", "times contradictory"),
        ("ElapsedRaw", "9" * 5000, "ElapsedRaw unreadable"),
        ("ElapsedRaw", "-5", "ElapsedRaw unreadable"),
        ("ElapsedRaw", "\u0663", "ElapsedRaw unreadable"),
        ("Timelimit", "99999-99:99", "Timelimit unreadable"),
        ("Timelimit", "99999-00:00:00", "Timelimit out of range"),
        ("ExitCode", "0", "ExitCode unreadable"),
        ("AllocTRES", "billing=1+", "TRES unreadable"),
        ("AllocTRES", "gres/gpu:h100=2,gres/gp", "TRES unreadable"),
        ("AllocTRES", "gres/gpu:h100=x", "TRES unreadable"),
        ("AllocTRES", "gres/gpu=99999999", "TRES unreadable"),
        ("AllocTRES", "gres/gpu:h100=4,gres/gpu=2", "TRES contradictory"),
        ("AllocTRES", "gres/gpu=2,gres/gpu=2", "TRES contradictory"),
        ("AllocTRES", "gres/gpu:/etc/x=2", "TRES unreadable"),
        ("AllocTRES", "gres/gpu:a100=2,gres/gpu=2", "TRES contradictory"),
        ("AllocTRES", "gres/gpu=2", "TRES contradictory"),
        ("AllocTRES", "cpu=2", "TRES contradictory"),
        ("JobIDRaw", "101", "JobID contradictory"),
        ("Partition", "gpu/x", "Partition unreadable"),
        ("Partition", "alice@uni", "Partition unreadable"),
        ("Cluster", "my lab", "Cluster unreadable"),
        ("NNodes", "2K", "NNodes unreadable"),
    ],
)
def test_a_value_that_cannot_be_is_told_by_its_class(
    tmp_path: Path, column: str, value: str, code: str
) -> None:
    change = {"Eligible": "Unknown", column: value} if column != "Eligible" else {column: value}
    assert fault(tmp_path / "a", **change) == code


@pytest.mark.parametrize("name", ["a|b", "|", "||||", "x|gpu_h100", "COMPLETED|0:0"])
def test_a_name_that_holds_the_delimiter_spoils_nothing(tmp_path: Path, name: str) -> None:
    for column in ("JobName", "Comment"):
        told = one(tmp_path / "a", **{column: name, "AdminComment": BLOB})
        assert told == one(tmp_path / "a", AdminComment=BLOB)


def test_delimiters_in_several_columns_are_read_where_they_have_one_meaning(
    tmp_path: Path,
) -> None:
    told = one(tmp_path / "a", JobName="vllm|x", Comment="model=a|b", AdminComment=BLOB)
    assert told == one(tmp_path / "a", JobName="vllm", AdminComment=BLOB)
    plain = one(tmp_path / "a", Comment="JS1:None|x")
    assert plain == one(tmp_path / "a")


def test_a_name_made_to_pass_for_columns_is_refused_not_believed(tmp_path: Path) -> None:
    record = {**RECORD, "JobName": "n"}
    middle = "|".join(list(record.values())[6:])
    forged = middle.replace("COMPLETED", "FAILED")
    assert fault(tmp_path / "a", JobName=f"n|{forged}") == "too many fields"
    # With free texts on both sides two readings of equal length exist.
    columns = ["JobID", "JobName", "State", "Submit", "Start", "End", "ReqTRES", "Comment"]
    start = {**RECORD, "Comment": "c|FAILED"}
    stamps = [start[c] for c in ("Submit", "Start", "End", "ReqTRES")]
    line = "|".join(["1", "n", "COMPLETED", *stamps, "FAILED", *stamps, "c"])
    (item,) = collect(tmp_path / "a", "|".join(columns) + "\n" + line + "\n")
    assert isinstance(item, Rejection)
    assert item.code == "delimiter ambiguous"


def test_a_job_whose_start_is_not_recorded_yet_is_left_for_later(tmp_path: Path) -> None:
    # Printed by sacct 22.05 within a second after a job of a second; the line after it, later.
    early = {"JobName": "allocation", "Partition": "", "Eligible": "0", "TimelimitRaw": "0"}
    assert fault(tmp_path / "a", **early) == "not recorded whole"
    assert fault(tmp_path / "b", **early, ElapsedRaw="0") == "not recorded whole"
    assert fault(tmp_path / "c", JobName="allocation", Partition="") == "not recorded whole"
    assert one(tmp_path / "d", JobName="allocation").job_class == "other"


def test_two_records_run_together_are_refused(tmp_path: Path) -> None:
    content = text({"JobID": "1"}, {"JobID": "2"})
    header, first, second = content.splitlines()
    told = collect(tmp_path / "a", f"{header}\n{first}\x0b{second}\n")
    assert [type(item) for item in told] == [Rejection]


def test_a_name_with_a_line_end_costs_its_record_only(tmp_path: Path) -> None:
    told = collect(tmp_path / "a", text({"JobName": "a\nb"}, {"JobID": "2"}))
    assert codes(told) == ["too few fields", "too few fields"]
    assert [job.job_id for job in rows(told)] == ["2"]


def test_a_name_cut_within_a_character_is_no_loss_and_a_user_is(tmp_path: Path) -> None:
    content = text({"JobName": "ü"}).encode()
    cut = content.replace("ü".encode(), "ü".encode()[:1])
    assert rows(collect(tmp_path / "a", cut)) == rows(collect(tmp_path / "b", content))
    broken = text({"User": "ü"}).encode().replace("ü".encode(), b"\xc3")
    assert codes(collect(tmp_path / "c", broken)) == ["not UTF-8"]


def test_steps_are_passed_over_and_a_repeated_header_is_told(tmp_path: Path) -> None:
    step = {"JobID": "100.batch", "JobIDRaw": "100.batch", "User": "", "Partition": ""}
    numbered = {**step, "JobID": "100_1.0", "JobIDRaw": "101.0"}
    content = text({}, step, numbered) + text({"JobID": "2"})
    told = collect(tmp_path / "a", content)
    assert [job.job_id for job in rows(told)] == ["100", "2"]
    assert codes(told) == ["repeated header"]


def test_long_lines_and_nul_bytes_are_told_with_their_line(tmp_path: Path) -> None:
    content = text({}).encode() + b"x" * 2**20 + b"yz\n" + b"1|\x00|\n" + b"\n"
    told = collect(tmp_path / "a", content)
    assert [(i.line, i.code) for i in told if isinstance(i, Rejection)] == [
        (3, "line too long"),
        (4, "NUL byte"),
    ]


def test_lines_of_nothing_but_delimiters_are_refused_quickly(tmp_path: Path) -> None:
    free = "JobName|Comment|WorkDir|SubmitLine|Extra|Reason|Reservation|StdErr"
    header = f"JobID|State|Submit|Start|End|ReqTRES|{free}"
    lines = "\n".join("COMPLETED|" * n for n in range(10, 60))
    start_s = time.process_time()
    told = collect(tmp_path / "a", f"{header}\n{lines}\n")
    assert time.process_time() - start_s < 2.0
    assert rows(told) == []
    assert len(told) == 50


def is_sound(item: ClusterJob | Rejection) -> bool:
    if isinstance(item, Rejection):
        return bool(item.code and item.reason)
    return (
        0 <= item.n_gpus <= 100_000
        and item.end_s > 0
        and (not item.start_s or item.end_s >= item.start_s)
        and item.elapsed_s <= max(item.end_s - item.start_s, 0) + 1
        and "/" not in item.partition + item.cluster + item.gpu
        and "alice" not in repr(item)
    )


@quick
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12))
def test_damaged_text_gives_sound_rows_or_reasons(tmp_path: Path, seed: int, n: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - damage, not secrets
    records = [{"JobID": str(i), "AdminComment": BLOB if i % 2 else ""} for i in range(1, 9)]
    content = bytearray(text(*records).encode())
    for _ in range(n):
        at = rng.randrange(len(content))
        match rng.randrange(6):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                del content[at : at + rng.randrange(1, 200)]
            case 2:
                content[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
            case 3:
                content[at:at] = b"9" * rng.randrange(1, 400)
            case 4:
                content[at:at] = content[at : at + 300]
            case _:
                content[at] = 0
        content = content or bytearray(b"x")
    path = tmp_path / "a"
    try:
        told = collect(path, bytes(content))
    except OmniPilotError as error:
        told_path = str(path) in str(error)
        assert told_path
        return
    assert all(is_sound(item) for item in told)


@quick
@given(content=st.binary(min_size=1, max_size=400), header=st.booleans())
def test_any_bytes_give_a_reason(tmp_path: Path, content: bytes, *, header: bool) -> None:
    whole = ("|".join(COLUMNS) + "\n").encode() + content if header else content
    try:
        told = collect(tmp_path / "a", whole)
    except OmniPilotError:
        return
    assert all(isinstance(item, Rejection) for item in told)


@quick
@given(
    record=st.fixed_dictionaries(
        {
            "JobName": st.text(max_size=30).filter(lambda t: "\n" not in t and "\0" not in t),
            "Comment": st.text(max_size=30).filter(lambda t: "\n" not in t and "\0" not in t),
        }
    )
)
def test_no_name_or_comment_changes_what_the_job_did(
    tmp_path: Path, record: dict[str, str]
) -> None:
    (item,) = collect(tmp_path / "a", text(record))
    if isinstance(item, Rejection):
        assert "|" in "".join(record.values())
        return
    told = one(tmp_path / "b")
    assert (item.state, item.gpu, item.start_s, item.end_s) == (
        told.state, told.gpu, told.start_s, told.end_s,
    )  # fmt: skip


def test_tres_of_a_step_is_never_added_to_its_job(tmp_path: Path) -> None:
    step = {"JobID": "100.0", "User": "", "Partition": "", "AllocTRES": TRES}
    (job,) = rows(collect(tmp_path / "a", text({}, step)))
    assert job.n_gpus == 2

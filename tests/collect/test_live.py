"""The cluster's state out of what sinfo, squeue, scontrol and sbatch print."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect.hostlist import expand_hosts
from omnipilot.collect.live import ask_starts, read_cluster
from omnipilot.collect.live_cache import CACHE_NAME, load_state, read_cache, write_cache
from omnipilot.collect.live_control import read_partitions, read_reservations
from omnipilot.collect.live_jobs import read_jobs_json
from omnipilot.collect.live_nodes import gres_gpus, read_nodes_json, read_nodes_text
from omnipilot.collect.programs import slurm_is_here
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition, QueuedJob
from omnipilot.domain.errors import BadInputError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSIONS = ("22.05", "24.11")
FakeSlurm = "Callable[..., None]"


def capture(shared_dir: Path, version: str, name: str) -> bytes:
    return (shared_dir / "captures" / f"slurm-{version}" / name).read_bytes()


class TestNodes:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_both_json_shapes_name_every_node_once_with_its_gpus(
        self, version: str, shared_dir: Path
    ) -> None:
        listed = read_nodes_json(capture(shared_dir, version, "sinfo.json"))
        assert listed.version.startswith(version)
        state = ClusterState(0.0, listed.nodes)
        assert [n.name for n in listed.nodes] == ["a100n1", "a100n2", "h100n1", "h100n2", "h200n1"]
        assert {kind: total for kind, (_, total) in state.gpus.items()} == {
            "a100": 8, "h100": 8, "h200": 8,
        }  # fmt: skip
        assert state.gpus["h200"][0] == 0
        assert listed.nodes[0].partitions == ("gpu_a100", "gpu_requeue")
        assert listed.nodes[0].features == ("a100", "hbm40")

    def test_a_node_that_does_not_respond_has_nothing_free(self, shared_dir: Path) -> None:
        nodes = read_nodes_json(capture(shared_dir, "22.05", "sinfo.json")).nodes
        silent = nodes[3]
        assert silent.closed == "not responding"
        assert "MIXED" in silent.states
        assert ClusterState(0.0, nodes).gpus["h100"] == (4, 8)

    def test_scontrol_says_the_same_as_sinfo(self, shared_dir: Path) -> None:
        first = read_nodes_json(capture(shared_dir, "24.11", "sinfo.json")).nodes
        second = read_nodes_json(capture(shared_dir, "24.11", "scontrol_show_node.json")).nodes
        assert [(n.name, n.gpus) for n in first] == [(n.name, n.gpus) for n in second]

    def test_a_drained_node_is_closed_with_its_reason(self) -> None:
        data = {
            "nodes": [
                {"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "xid 79\x1b[2J"}
            ]
        }
        (node,) = read_nodes_json(json.dumps(data).encode()).nodes
        assert node.closed == "drained"
        assert node.reason == "xid 79?[2J"

    def test_text_has_one_node_for_the_lines_of_its_partitions(self) -> None:
        def line(partition: str, state: str) -> str:
            cells = (
                ("n1", 128), (partition, 128), ("up", 12), ("1-00:00:00", 24), (state, 128),
                ("gpu:h100:4(S:0-1)", 512), ("gpu:h100:1(IDX:0)", 512), ("h100,hbm80", 512),
                ("none", 256),
            )  # fmt: skip
            return "".join(f"{text:<{width}}" for text, width in cells)

        text = f"{line('a', 'mixed*')}\n{line('b', 'mixed*')}\n"
        listed = read_nodes_text(text.encode())
        assert listed.nodes == (
            ClusterNode(
                "n1", ("MIXED", "NOT_RESPONDING"), ("a", "b"), (GpuCount("h100", 4, 1),),
                features=("h100", "hbm80"),
            ),
        )  # fmt: skip
        assert [p.max_time_s for p in listed.partitions] == [86_400, 86_400]

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"nodes": 3}', b"\xff", b'{"nodes":['])
    def test_anything_else_is_one_line(self, data: bytes) -> None:
        with pytest.raises(ToolError, match="JSON"):
            read_nodes_json(data)

    def test_gpus_in_use_without_a_type_are_counted_under_any_of_its_spellings(self) -> None:
        for used in ("gpu:(null):6(IDX:0-5)", "gpu:6(IDX:0-5)"):
            assert gres_gpus(used) == {"": 6}
            data = {"nodes": [{"name": "n1", "gres": "gpu:8(S:0-1)", "gres_used": used}]}
            (node,) = read_nodes_json(json.dumps(data).encode()).nodes
            cells = (
                ("n1", 128), ("p", 128), ("up", 12), ("infinite", 24), ("mixed", 128),
                ("gpu:8(S:0-1)", 512), (used, 512), ("h100", 512), ("none", 256),
            )  # fmt: skip
            text = "".join(f"{cell:<{width}}" for cell, width in cells)
            (same,) = read_nodes_text(text.encode()).nodes
            assert node.gpus == same.gpus == (GpuCount("", 8, 6),)
        assert gres_gpus("gpu:(null):2(IDX:0-1),gpu:a100:1(IDX:2)") == {"": 2, "a100": 1}

    def test_mig_slices_are_told_from_whole_gpus(self) -> None:
        counts = gres_gpus("gpu:a100:2(S:0),gpu:a100_1g.5gb:7(S:1),shard:8,gpu:4,(null)")
        assert counts == {"a100": 2, "a100_1g.5gb": 7, "": 4}
        assert [GpuCount(kind, n).is_mig for kind, n in counts.items()] == [False, True, False]

    @given(st.text(max_size=60))
    def test_no_gres_text_makes_trouble(self, text: str) -> None:
        assert all(n >= 0 for n in gres_gpus(text).values())


class TestJobs:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_those_that_run_hold_gpus_and_those_that_wait_compete(
        self, version: str, shared_dir: Path
    ) -> None:
        jobs = read_jobs_json(capture(shared_dir, version, "squeue.json"))
        running = [j for j in jobs if j.running]
        assert {(j.gpu, j.n_gpus) for j in running} >= {("h200", 8)}
        assert all(j.end_s == j.start_s + j.time_limit_s for j in running if j.n_gpus == 8)
        waiting = [j for j in jobs if not j.running]
        held = [j for j in waiting if not j.competes]
        assert {j.n_gpus for j in held} == {1, 8}  # one held, one that waits for its begin time
        assert all(j.start_s > 0 for j in waiting if j.competes)

    def test_an_array_stands_for_its_tasks_and_cpu_jobs_are_left_out(self) -> None:
        def job(**more: object) -> dict[str, object]:
            return {
                "job_state": ["PENDING"], "partition": "a,b", "state_reason": "Priority",
                "tres_req_str": "cpu=1,gres/gpu=2", "tres_alloc_str": "", **more,
            }  # fmt: skip

        jobs = [
            job(array_task_string="3-8%2"),
            job(tres_req_str="cpu=4"),
            job(tres_req_str="gres/gpu=x"),
            job(job_state=["COMPLETED"]),
        ]
        (found,) = read_jobs_json(json.dumps({"jobs": jobs}).encode())
        assert (found.n_tasks, found.n_gpus, found.gpu) == (6, 2, "")
        assert found.partitions == ("a", "b")

    def test_ten_thousand_jobs_are_read_in_two_seconds(self, shared_dir: Path) -> None:
        answer = json.loads(capture(shared_dir, "24.11", "squeue.json"))
        answer["jobs"] = [answer["jobs"][-1]] * 10_000
        data = json.dumps(answer).encode()
        before = time.process_time()
        assert len(read_jobs_json(data)) == 10_000
        assert time.process_time() - before < 2.0


class TestControl:
    def test_partitions_have_their_limits_and_tiers(self, shared_dir: Path) -> None:
        text = capture(shared_dir, "22.05", "scontrol_show_partition_o.txt")
        partitions = read_partitions(b"scontrol: show partition\n" + text)
        assert [p.name for p in partitions] == ["gpu_a100", "gpu_h100", "gpu_h200", "gpu_requeue"]
        assert partitions[0] == Partition(
            "gpu_a100", is_default=True, max_time_s=3 * 86_400, priority_tier=10, preempts=True
        )
        assert partitions[3].priority_tier == 1

    def test_reservations_name_their_nodes_and_times(self) -> None:
        text = (
            b"scontrol: show reservation\n"
            b"ReservationName=maint StartTime=1795984296 EndTime=1795987896 Nodes=h100n[1-2] "
            b"PartitionName=(null) Users=root\nReservationName=licence Nodes=(null) EndTime=1\n"
        )
        (found,) = read_reservations(text)
        assert (found.name, found.nodes) == ("maint", ("h100n1", "h100n2"))
        assert found.end_s - found.start_s == 3600
        assert read_partitions(text) == ()

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("a[1-3,07],b", ("a1", "a2", "a3", "a07", "b")),
            ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
            ("a[08-10]", ("a08", "a09", "a10")),
            ("", ()),
            ("(null)", ()),
            ("a[x]", ("a[x]",)),
            ("a[1", ("a[1",)),
        ],
    )
    def test_short_forms_of_names_are_spelt_out(self, text: str, names: tuple[str, ...]) -> None:
        assert expand_hosts(text) == names

    @given(st.text(alphabet="ab[]0123456789-,", max_size=40))
    def test_no_list_of_names_grows_without_end(self, text: str) -> None:
        assert len(expand_hosts(text)) <= 100_000


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script of Slurm's name on PATH, before anything else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    return put


class TestReading:
    def put_all(self, fake: Callable[[str, str], None], shared_dir: Path, version: str) -> None:
        folder = shared_dir / "captures" / f"slurm-{version}"
        fake("sinfo", f"echo sinfo >>$CALLS; cat {folder}/sinfo.json")
        fake("squeue", f"echo squeue >>$CALLS; cat {folder}/squeue.json")
        text = shared_dir / "captures" / "slurm-22.05" / "scontrol_show_partition_o.txt"
        fake("scontrol", f"echo scontrol >>$CALLS; cat {text}")

    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_program_is_called_once(
        self,
        version: str,
        fake: Callable[[str, str], None],
        shared_dir: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        calls = tmp_path / "calls"
        monkeypatch.setenv("CALLS", str(calls))
        self.put_all(fake, shared_dir, version)
        state = read_cluster(now_s=5.0, timeout_s=5.0)
        assert sorted(calls.read_text(encoding="utf-8").split()) == ["scontrol", "sinfo", "squeue"]
        assert (state.taken_s, state.origin, state.notes) == (5.0, "slurm", ())
        assert len(state.nodes) == 5
        assert state.pending_gpus > 0
        assert any(p.is_default for p in state.partitions)

    def test_a_version_without_json_is_asked_for_text(
        self, fake: Callable[[str, str], None]
    ) -> None:
        refuse = 'case "$*" in *--json*) echo "unrecognized option \'--json\'" >&2; exit 1;; esac'
        cells = (
            ("n1", 128), ("p", 128), ("up", 12), ("infinite", 24), ("idle", 128),
            ("gpu:h100:4", 512), ("gpu:h100:0(IDX:N/A)", 512), ("x", 512), ("none", 256),
        )  # fmt: skip
        line = "".join(f"{text:<{width}}" for text, width in cells)
        fake("sinfo", f"{refuse}\nprintf '%s\\n' '{line}'")
        fake("squeue", refuse)
        fake("scontrol", "exit 1")
        state = read_cluster(now_s=0.0, timeout_s=5.0)
        assert state.gpus == {"h100": (4, 4)}
        assert len(state.notes) == 1
        assert "Reservations" in state.notes[0]

    def test_a_controller_that_hangs_costs_its_time_out(
        self, fake: Callable[[str, str], None]
    ) -> None:
        for name in ("sinfo", "squeue", "scontrol"):
            fake(name, "exec sleep 30")
        before = time.monotonic()
        with pytest.raises(ToolError, match="sinfo did not answer"):
            read_cluster(now_s=0.0, timeout_s=0.4)
        assert time.monotonic() - before < 15.0

    def test_a_second_question_has_only_the_time_that_the_first_left(
        self, fake: Callable[[str, str], None]
    ) -> None:
        late = 'case "$*" in *--json*) sleep 0.6; echo "unrecognized option" >&2; exit 1;; esac'
        for name in ("sinfo", "squeue"):
            fake(name, f"{late}\nexec sleep 30")
        fake("scontrol", "exit 1")
        with pytest.raises(ToolError, match=r"sinfo did not answer within (0\.\d|1|1\.[0-4]) s"):
            read_cluster(now_s=0.0, timeout_s=2.0)

    def test_a_queue_that_cannot_be_read_is_a_note(
        self, fake: Callable[[str, str], None], shared_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CALLS", os.devnull)
        self.put_all(fake, shared_dir, "22.05")
        fake("squeue", "echo '{\"jobs\": 3}'")
        state = read_cluster(now_s=0.0, timeout_s=5.0)
        assert state.jobs == ()
        assert "The queue is not known" in state.notes[0]

    def test_programs_that_are_missing_are_said_so(
        self, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        del fake
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        assert not slurm_is_here()
        with pytest.raises(ToolError, match="sinfo"):
            read_cluster(now_s=0.0, timeout_s=1.0)


class TestStarts:
    def test_a_start_and_a_refusal_are_read(
        self, fake: Callable[[str, str], None], tmp_path: Path
    ) -> None:
        asked = tmp_path / "asked"
        fake(
            "sbatch",
            f'echo "$@" >>{asked}\ncase "$*" in *h100*) echo "sbatch: Job 29 to start at 1795957966'
            ' using 1 processors on nodes h200n1 in partition p" >&2;; *) echo "allocation failure:'
            ' Invalid partition name specified" >&2; exit 1;; esac',
        )
        first, second = ask_starts([("p", "h100", 2), ("q", "", 1)], limit_s=5400.5, timeout_s=5.0)
        assert (first.start_s, first.refusal) == (1795957966.0, "")
        assert (second.start_s, second.refusal) == (None, "Invalid partition name specified")
        words = asked.read_text(encoding="utf-8")
        assert "--gres=gpu:h100:2 --time=91" in words
        assert "--gres=gpu:1 " in words

    def test_no_answer_is_no_refusal(self, fake: Callable[[str, str], None]) -> None:
        fake("sbatch", "exec sleep 30")
        assert ask_starts([("p", "h100", 2)], limit_s=60.0, timeout_s=0.3) == []


STATE = ClusterState(
    taken_s=100.0,
    nodes=(ClusterNode("n1", ("IDLE",), ("p",), (GpuCount("h100", 4, 1),)),),
    partitions=(Partition("p"),),
    jobs=(QueuedJob(("p",), "h100", 1, running=True),),
    notes=("A note.",),
)


class TestCache:
    def test_a_state_comes_back_with_its_time_and_where_it_is_from(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        write_cache(home, STATE)
        back = read_cache(home, now_s=130.0, most_age_s=60.0)
        assert back == dataclasses.replace(STATE, origin="cache")
        assert load_state(home / CACHE_NAME).origin == "file"
        assert [p.name for p in home.iterdir()] == [CACHE_NAME]

    @pytest.mark.parametrize("now_s", [161.0, 99.0])
    def test_an_old_state_or_one_from_the_future_is_not_used(
        self, now_s: float, tmp_path: Path
    ) -> None:
        write_cache(tmp_path, STATE)
        assert read_cache(tmp_path, now_s=now_s, most_age_s=60.0) is None

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"taken_s": 1, "nodes": 3}'])
    def test_damage_is_no_state(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / CACHE_NAME
        path.write_bytes(data)
        assert read_cache(tmp_path, now_s=1.0, most_age_s=60.0) is None
        with pytest.raises(BadInputError, match="holds no cluster state"):
            load_state(path)

    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("", encoding="utf-8")
        write_cache(path, STATE)

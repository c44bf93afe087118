"""Break one property after another in a copy of the tree, and see that its test fails.

    python benchmarks/break_properties.py              # all of them
    python benchmarks/break_properties.py lock fsync   # those with such a word in their name

A test that cannot fail proves nothing. Each entry takes one safeguard out of the code, as a
careless change would, and names the test that must notice; docs/contributing.md has the last
results. Exit code 1 where a test stays green.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Break:
    """One property broken.

    Args:
        name: of the break.
        breaks: the property.
        file: changed file.
        old: text there, found once.
        new: what takes its place.
        test: what must fail: a file and, after ``::``, part of a test's name.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    test: str


BREAKS: Final[tuple[Break, ...]] = (
    Break("no fsync", "a row that was told survives a loss of power",
          "src/omnipilot/store/log.py",
          "            os.fsync(fd)\n            if not self._named:",
          "            if not self._named:",
          "tests/store/test_crashes.py::unplugged_at_any_call_keeps"),
    Break("torn end glued", "a torn end is moved aside before the next row",
          "src/omnipilot/store/log.py",
          "                    self._repair(stream.fileno())\n", "",
          "tests/store/test_crashes.py::bytes_aside"),
    Break("end cut before it is kept", "the bytes of a torn end are kept",
          "src/omnipilot/store/log.py",
          "        self._keep_aside(fd, start_bytes, size_bytes)\n        os.ftruncate",
          "        os.ftruncate", "tests/store/test_crashes.py::bytes_aside"),
    Break("half a batch", "a refused batch is in the log whole or not at all",
          "src/omnipilot/store/log.py",
          "            os.ftruncate(fd, start_bytes)\n            raise", "            raise",
          "tests/store/test_crashes.py::leaves_the_log_as_it_was"),
    Break("no lock", "eight writers at once lose, tear and double nothing",
          "src/omnipilot/store/lock.py", "        _acquire(fd, path, timeout_s)\n", "",
          "tests/store/test_faults.py::eight_writers"),
    Break("a missing lock is shrugged off", "a file system without locks is refused",
          "src/omnipilot/store/lock.py", "if error.errno not in _BUSY:", "if False:",
          "tests/store/test_faults.py::without_locks"),
    Break("a damaged line counts as stored", "a row whose line was damaged is taken in anew",
          "src/omnipilot/store/log.py", "known_digest(line) if", "digest_of_line(line) if",
          "tests/store/test_log.py::damaged_is_taken_in_anew"),
    Break("pointer before ledger", "the ledger tells of a model before it answers",
          "src/omnipilot/learn/registry.py",
          "        entry = self.ledger.append(event, version, "
          '{**facts, "before": self.current}, at_s=at_s)\n        self._point_to(version)\n',
          "        before = self.current\n        self._point_to(version)\n"
          "        entry = self.ledger.append("
          'event, version, {**facts, "before": before}, at_s=at_s)\n',
          "tests/learn/test_model_crashes.py"),
    Break("rows of a newer version dropped", "going back to an older version loses nothing",
          "src/omnipilot/store/codec.py",
          "        if head.kind not in ROW_TYPES:",
          "        if head.schema_version > SCHEMA_VERSION:\n"
          '            raise UnreadableLineError("too new")\n'
          "        if head.kind not in ROW_TYPES:",
          "tests/store/test_faults.py::older_version_and_forward"),
    Break("half a backup", "the documented backup restores a site in use",
          "docs/durability.md", '-C "$OMNIPILOT_HOME" .', '-C "$OMNIPILOT_HOME" history.jsonl',
          "tests/store/test_faults.py::documented_backup"),
    Break("deep TOML", "nesting bombs in settings are refused",
          "src/omnipilot/settings.py", "(ValueError, RecursionError, OSError)",
          "(ValueError, OSError)", "tests/test_hostile_files.py::nested_too_deeply"),
    Break("a parser that trusts", "no damage makes a parser crash",
          "src/omnipilot/catalog/hf_config.py",
          "    except (ValueError, RecursionError) as error:",
          "    except UnicodeError as error:", "tests/test_every_parser.py::coverage_leads_to"),
    Break("pickle allowed", "nothing loads a format that can run code",
          "src/omnipilot/costmodel/array_file.py", "allow_pickle=False", "allow_pickle=True",
          "tests/test_hostile_files.py::runs_code"),
    Break("a version is any path", "a ledger cannot point the model out of its folder",
          "src/omnipilot/learn/ledger.py",
          "        and _VERSION.fullmatch(entry.version) is not None\n", "",
          "tests/test_hostile_files.py::cannot_point"),
    Break("a home for everybody", "a HOME that anybody can write in is refused",
          "src/omnipilot/settings.py", " and mode & stat.S_IWOTH", " and False",
          "tests/test_hostile_files.py::anybody_can_write"),
    Break("formulas in CSV", "a text that begins like a formula is no formula",
          "src/omnipilot/cli/output.py",
          "return text_cell(cell) if isinstance(cell, str) else cell", "return cell",
          "tests/cli/test_hostile_output.py::shown_and_not_obeyed"),
    Break("pages without escapes", "names in pages are text",
          "src/omnipilot/web/render.py", "autoescape=select_autoescape(default=True)",
          "autoescape=False", "tests/web/test_hostile_params.py"),
    Break("old telemetry vouches", "telemetry that is stale is said to be",
          "src/omnipilot/decide/shield.py",
          "stale=newest is not None and not -_CLOCK_SLIP_S <= now_s - newest <= rules.fresh_s",
          "stale=False", "tests/advisor/test_chaos.py::alone_is_said"),
    Break("a lost queue is not told", "an advice names the loss of the queue",
          "src/omnipilot/collect/live.py",
          'notes.append(f"The queue is not known: {error}.")', "pass",
          "tests/advisor/test_chaos.py::alone_is_said"),
    Break("confidence without support", "no label promises more than the evidence",
          "src/omnipilot/decide/rank.py",
          ' or candidate.targets[_VALUE_TARGET].source == "prior"', "",
          "tests/advisor/test_chaos.py"),
    Break("an arm that nobody measured", "confidence is low outside the support",
          "src/omnipilot/decide/rank.py", "if not candidate.support.supported or ", "if ",
          "tests/decide/test_rank.py"),
    Break("dear is good", "a higher price never lifts a GPU over another",
          "src/omnipilot/decide/utility.py",
          'Term("compute", -1.0,', 'Term("compute", +1.0,',
          "tests/advisor/test_metamorphic.py::higher_price"),
    Break("bandwidth slows down", "more bandwidth is never slower under the prior",
          "src/omnipilot/costmodel/physics.py",
          '/ arms.shards / f["bandwidth"] /', '/ arms.shards * f["bandwidth"] / 9e24 /',
          "tests/costmodel/test_physics.py::bandwidth_is_never_slower"),
    Break("intervals without the offset", "the shipped intervals cover four of five measurements",
          "src/omnipilot/costmodel/conformal.py",
          "return np.minimum(low - beyond, middle), np.maximum(high + beyond, middle)",
          "return np.minimum((low + middle) / 2, middle), np.maximum(high, middle)",
          "tests/evaluate/test_coverage_monitor.py::four_of_five"),
    Break("a heavy import", "an answer loads what it needs only",
          "src/omnipilot/decide/rank.py", "import numpy as np\n",
          "import numpy as np\nimport urllib.request\n", "tests/cli/test_start_up.py"),
    Break("classes compiled at once", "an import compiles no method that nobody calls",
          "src/omnipilot/domain/frozen.py", "frozen and options.keys() <= _KNOWN", "False",
          "tests/domain/test_frozen.py::compiled_when_first_called"),
    Break("a command that fails", "every command in the documentation runs",
          "docs/tutorial.md", "omnipilot data import runs.csv", "omnipilot data import run.csv",
          "tests/test_documented_commands.py::every_command_of_a_page"),
    Break("a table left out", "the reference shows every table of the program",
          "docs/reference.md", "```{omnipilot-table} terms", "```{omnipilot-table} targets",
          "tests/test_reference.py"),
)  # fmt: skip


def copied(to: Path) -> None:
    """The tree as git knows it, with what is not committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)


def failed_tests(tree: Path, test: str) -> tuple[list[str], str]:
    """Run a test of a tree; the names of those that failed, and the end of what was said."""
    path, _, part = test.partition("::")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path,
         *(["-k", part] if part else [])],
        cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1",
             "OMNIPILOT_SHARED": os.environ.get("OMNIPILOT_SHARED", str(ROOT.parent / "shared"))},
    )  # fmt: skip
    return re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE), done.stdout[-600:]


def main() -> int:
    """Break, test, mend, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names; all breaks if none")
    args = parser.parse_args()
    wanted = [b for b in BREAKS if not args.words or any(w in b.name for w in args.words)]
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        for broken in wanted:
            path = tree / broken.file
            sound = path.read_text(encoding="utf-8")
            if broken.old not in sound:
                print(f"{broken.name}: the text to break is no longer in {broken.file}")
                unnoticed += 1
                continue
            path.write_text(sound.replace(broken.old, broken.new, 1), encoding="utf-8")
            began_s = time.monotonic()
            failed, said = failed_tests(tree, broken.test)
            path.write_text(sound, encoding="utf-8")
            unnoticed += not failed
            took_s = time.monotonic() - began_s
            print(f"{broken.name}: {failed[0] if failed else f'NOT NOTICED: {said}'} "
                  f"({took_s:.0f} s)", flush=True)  # fmt: skip
    print(f"{len(wanted)} properties broken, {unnoticed} not noticed")
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())

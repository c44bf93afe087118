"""Programs are started without a shell, within a time and an amount of output."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from omnipilot.collect.command import (
    Command,
    CommandResult,
    run_command,
    run_commands,
    stream_lines,
)
from omnipilot.collect.programs import find_program
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_answer_holds_code_output_and_complaints() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    result = run_command(python(code))
    assert (result.returncode, result.stdout, result.stderr) == (0, b"out\n", "err")
    assert result.elapsed_s > 0


def test_no_shell_reads_the_arguments() -> None:
    hostile = "$(touch hacked); `id` | cat > x"
    result = run_command((*python("import sys; print(sys.argv[1])"), hostile))
    assert result.stdout.decode() == f"{hostile}\n"


def test_what_is_given_is_read_even_where_it_is_large() -> None:
    text = b"x" * 3_000_000
    assert run_command(("cat",), stdin=text).stdout == text


def test_variables_are_added_to_the_environment() -> None:
    code = "import os; print(os.environ['A_WORD'], 'PATH' in os.environ)"
    assert run_command(python(code), env={"A_WORD": "yes"}).stdout == b"yes True\n"


def test_a_program_that_hangs_costs_its_time_out_and_its_children_end_too() -> None:
    code = "import subprocess; subprocess.run(['sleep', '30'])"
    before = time.monotonic()
    with pytest.raises(ToolError, match=r"did not answer within 0\.3 s"):
        run_command(python(code), timeout_s=0.3)
    assert time.monotonic() - before < 15.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-program",), "not on PATH"),
        (python("import sys; sys.exit('no partition\\nat all')"), "no partition at all"),
        (python("import os; os.kill(os.getpid(), 9)"), "signal 9"),
        (("bad\0name",), "cannot be started"),
        (("/etc/passwd",), "cannot be started"),
    ],
    ids=["missing", "failed", "killed", "NUL", "no program"],
)
def test_a_failure_is_one_line(argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(ToolError, match=words) as caught:
        run_command(argv)
    assert "\n" not in str(caught.value)


def test_output_without_end_is_cut_off() -> None:
    endless = python("while True: print('x' * 1000)")
    with pytest.raises(ToolError, match="printed more than 1 MiB"):
        run_command(endless, output_bytes=2**20)
    with pytest.raises(ToolError, match="printed more than 1 MiB"):
        list(stream_lines(endless, output_bytes=2**20))


def test_several_programs_run_side_by_side(tmp_path: Path) -> None:
    # Each ends only when all have begun.
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "folder, i = Path(sys.argv[1]), sys.argv[2]\n(folder / i).touch()\n"
        "while len(list(folder.iterdir())) < 4: time.sleep(0.01)\nprint(i)"
    )
    commands = [Command((*python(code), str(tmp_path), str(i)), 60.0) for i in range(4)]
    answers = run_commands(commands)
    assert [a.stdout for a in answers if isinstance(a, CommandResult)] == [
        b"0\n", b"1\n", b"2\n", b"3\n",
    ]  # fmt: skip


def test_one_that_hangs_leaves_the_others_their_answers() -> None:
    hung, fine, missing = run_commands(
        [
            Command(("sleep", "30"), timeout_s=0.3),
            Command(("echo", "here"), timeout_s=5.0),
            Command(("no-such-program",)),
        ]
    )
    assert isinstance(hung, ToolError)
    assert isinstance(missing, ToolError)
    assert isinstance(fine, CommandResult)
    assert fine.stdout == b"here\n"


def test_lines_come_as_they_are_printed() -> None:
    code = (
        "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.05)\nprint('e', end='')"
    )
    assert list(stream_lines(python(code))) == [b"0\n", b"1\n", b"2\n", b"e"]


def test_a_stream_tells_of_failure_after_its_lines_and_of_silence() -> None:
    lines = stream_lines(python("import sys; print('a'); sys.exit('broken')"))
    assert next(lines) == b"a\n"
    with pytest.raises(ToolError, match="broken"):
        next(lines)
    with pytest.raises(ToolError, match="did not answer"):
        list(stream_lines(("sleep", "30"), timeout_s=0.2))


def test_a_stream_that_is_left_early_ends_its_program() -> None:
    lines = stream_lines(python("while True: print('x')"))
    assert next(lines) == b"x\n"
    lines.close()


def test_programs_are_found_on_path() -> None:
    assert find_program("sleep")
    assert find_program("no-such-program") is None

"""The documentation keeps up with the program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from omnipilot.cli.app import COMMANDS, cli
from omnipilot.domain import TARGETS
from omnipilot.settings import VALID_KEYS

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 400


def every_command() -> dict[str, click.Command]:
    """All commands by the words that call them, groups included."""
    found: dict[str, click.Command] = {}

    def walk(path: str, command: click.Command) -> None:
        found[path] = command
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=path)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(f"{path} {name}", child)

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        walk(f"omnipilot {name}", command)
    return found


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("path", every_command())
def test_the_help_of_every_command_has_an_example_that_calls_it(path: str) -> None:
    text = every_command()[path].help or ""
    assert "Example:" in text
    assert path in text.split("Example:")[1]


@pytest.mark.parametrize("path", every_command())
def test_every_option_says_what_it_does(path: str) -> None:
    for param in every_command()[path].params:
        if isinstance(param, click.Option):
            assert param.help, f"{path} {param.opts}"


@pytest.mark.parametrize(("name", "entry"), COMMANDS.items())
def test_the_summary_in_the_table_is_the_command_s_own_first_line(
    name: str, entry: tuple[str, str, str]
) -> None:
    help_text = every_command()[f"omnipilot {name}"].help or ""
    assert entry[2] == help_text.splitlines()[0]


@pytest.mark.parametrize("path", every_command())
def test_every_command_and_option_is_in_the_documentation(path: str) -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    section = next((s for s in sections if s.splitlines()[0].strip("` ") == path), None)
    assert section is not None, f"no section '## `{path}`'"
    for param in every_command()[path].params:
        if isinstance(param, click.Option):
            assert f"`{param.opts[-1]}" in section, param.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_target_is_documented_with_its_unit_and_meaning(target: object) -> None:
    row = f"| `{target.name}` | {target.unit} | {target.meaning} |"  # type: ignore[attr-defined]
    assert row in (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", VALID_KEYS)
def test_every_setting_is_documented(key: str) -> None:
    text = (ROOT / "docs" / "site.md").read_text(encoding="utf-8")
    assert f"| `{key}`" in text or f"| `[{key}]`" in text


def test_the_first_command_of_the_readme_is_the_advice_and_the_second_the_tests() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", readme, flags=re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("./")]
    assert commands[0].endswith(
        "omnipilot advise --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096"
    )
    assert commands[1] == "./scripts/test"
    for command in commands:
        script = ROOT / command.split()[0]
        assert script.stat().st_mode & 0o111, script


def test_modules_hold_at_most_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): n
        for path in (ROOT / "src").rglob("*.py")
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_links_between_documents_lead_somewhere() -> None:
    pattern = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
    broken = [
        f"{path.name}: {link}"
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for link in pattern.findall(path.read_text(encoding="utf-8"))
        if "://" not in link and not (path.parent / link).exists()
    ]
    assert broken == []


def test_no_file_mentions_a_place_of_one_machine_or_a_package_registry() -> None:
    # Spelt in pieces so that this file does not mention them either.
    words = ["/work" + "/", "/root" + "/", "/home" + "/", "pypi" + ".org", "python" + "hosted"]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked_files()
        if path.suffix in {".py", ".md", ".toml", ".json", ".sh", ""}
        for word in words
        if word in path.read_text(encoding="utf-8", errors="ignore")
    ]
    assert found == []

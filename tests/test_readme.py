"""What the README tells people to type exists."""

import re
import shlex

import pytest
import typer
import typer.main
from conftest import ROOT

from nlm_core.cli import app

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line]
INLINE = re.findall(r"`((?:make|nlm) [a-z][^`\n]*)`", README)


def test_there_is_something_to_check():
    assert len(COMMANDS) >= 10
    assert len(INLINE) >= 5


@pytest.mark.parametrize("line", [line for line in COMMANDS + INLINE if line.startswith("make ")])
def test_make_targets_exist(line):
    target = line.split()[1]
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), target


@pytest.mark.parametrize("line", [line for line in COMMANDS + INLINE if line.startswith("nlm ")])
def test_nlm_commands_parse(line):
    """Every command, argument and option is one that the command line knows."""
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    try:
        command.make_context("nlm", list(words))
    except typer.Exit:
        assert "--help" in words
    except Exception as error:  # an inline mention may leave out what is required, but not name what is unknown
        assert "Missing" in str(error), f"{line}: {error}"


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_ci_command_is_the_readmes():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in README


def test_python_example_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NLM_ROOT", str(ROOT))
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    shape, story = capsys.readouterr().out.split("\n", 1)
    assert shape == "(512, 256)"
    assert story.startswith("Once upon a time")

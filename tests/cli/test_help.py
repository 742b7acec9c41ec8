"""Help: every command and option says in one line what it does and what its default is; a slip names the nearest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from fedspan.cli.main import COMMANDS as TABLE
from fedspan.cli.main import LazyCommands, app

Fedspan = Callable[..., Any]


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, the outermost first."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(command.load(name) if isinstance(command, LazyCommands) else inner, (*words, name))


COMMANDS = dict(walk(get_command(app)))
OPTIONS = [(words, option) for words, command in COMMANDS.items() for option in command.params]


def spelled(words: tuple[str, ...]) -> str:
    return " ".join(("fedspan", *words))


def test_there_are_commands_and_options() -> None:
    assert {("run",), ("new",), ("schema",), ("export",), ("doctor",)} <= set(COMMANDS)
    assert {"--set", "--out"} <= {name for words, option in OPTIONS if words == ("run",) for name in option.opts}


@pytest.mark.parametrize("name", TABLE)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    """The list has texts of its own, so that nothing has to be imported to print it."""
    assert COMMANDS[name,].help.split("\n\n")[0] == TABLE[name].help


def test_the_list_of_commands_waits_for_nothing_heavy() -> None:
    heavy = ["scipy", "sklearn", "pandas", "nvflare", "torch", "fedspan.jobs", "fedspan.estimators"]
    code = (
        "import sys\nfrom fedspan.cli.main import app\n"
        "app(['--help'], prog_name='fedspan', standalone_mode=False)\n"
        f"print('loaded:', [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Write a commented job file" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("words", COMMANDS, ids=spelled)
def test_a_command_says_what_it_does(words: tuple[str, ...], fedspan: Fedspan) -> None:
    first = (COMMANDS[words].help or "").split("\n\n")[0]
    assert len(first) > 15, spelled(words)
    assert "\n" not in first.strip()  # one line; a longer text may follow it
    page = fedspan(*words, "--help")
    assert page.exit_code == 0
    assert " ".join(first.split())[:40] in " ".join(page.stdout.replace("│", " ").split())


@pytest.mark.parametrize(("words", "option"), OPTIONS, ids=lambda x: spelled(x) if isinstance(x, tuple) else x.name)
def test_an_option_says_what_it_does_and_its_default(words: tuple[str, ...], option: Any) -> None:
    text = option.help or ""
    assert len(text) > 8, option.name
    assert "\n" not in text
    shown = option.show_default is not False and option.default not in (None, False, [], ())
    plain = option.is_eager or not option.expose_value  # they print or install something, and that is all
    assert option.required or plain or shown or "default" in text.lower(), f"{option.name}: {text}"


@pytest.mark.parametrize("words", COMMANDS, ids=spelled)
def test_flags_have_no_type(words: tuple[str, ...], fedspan: Fedspan) -> None:
    assert "bool" not in fedspan(*words, "--help").stdout.lower()


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("fedspan re", "resume report"),
        ("fedspan run --q", "--quiet"),
        ("fedspan site pau", "pause"),
        ("fedspan site check --j", "--job"),
        ("fedspan run jo", ""),  # none of ours: the shell then proposes files
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, proposed: str) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_FEDSPAN_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "fedspan.cli.main"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == proposed.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str) -> None:
    command = [sys.executable, "-m", "fedspan.cli.main"]
    asked = {"_FEDSPAN_COMPLETE": f"source_{shell}"}
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert "_FEDSPAN_COMPLETE" in done.stdout
    if shell == "bash" and shutil.which("bash"):  # it can be read by the shell that it is for
        subprocess.run(["bash", "-euc", done.stdout + "\ncomplete -p fedspan"], check=True, capture_output=True)


def swapped(word: str) -> str:
    """Two letters in the wrong order, as fingers do it."""
    i = len(word) // 2
    return word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]


def plain(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("words", [words for words in COMMANDS if words], ids=spelled)
def test_a_mistyped_command_names_the_nearest(words: tuple[str, ...], fedspan: Fedspan) -> None:
    *before, last = words
    slip = swapped(last) if len(last) > 2 else f"{last}{last[-1]}"  # of two letters nothing is like the other order
    result = fedspan(*before, slip)
    assert result.exit_code == 2
    assert f"'{last}'" in plain(result.stderr), result.stderr


NAMED = [(words, name) for words, option in OPTIONS for name in option.opts if name.startswith("--")]


@pytest.mark.parametrize(("words", "name"), NAMED, ids=lambda x: spelled(x) if isinstance(x, tuple) else x)
def test_a_mistyped_option_names_the_nearest(words: tuple[str, ...], name: str, fedspan: Fedspan) -> None:
    result = fedspan(*words, f"--{swapped(name[2:])}")
    assert result.exit_code == 2
    assert name in plain(result.stderr), result.stderr

"""docs/membership.md and the commands say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from typed import call

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "membership.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    set(re.findall(r"^fedspan .*", "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)), re.MULTILINE))
)


def test_the_page_shows_all_commands_of_membership() -> None:
    shown = {tuple(line.split()[1:3]) for line in COMMANDS}
    names = ("found", "invite", "add-researcher", "approve", "members", "remove", "restore", "remove-researcher")
    assert {("federation", name) for name in (*names, "renew", "upgrade")} <= shown
    assert {("site", name) for name in ("join", "renew", "service", "warm", "start")} <= shown


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_membership_have_these_options(line: str) -> None:
    words = line.split("#")[0].split()[1:]
    done = call(*words[:2], "--help")
    assert done.exit_code == 0, done.output
    for option in (word for word in words if word.startswith("--")):
        assert option in done.output, option

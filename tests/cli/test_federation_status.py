"""`fedspan federation status`: what it prints, when it waits, and with which code it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from fedspan.cli.federation import status_command
from fedspan.deployment.operations.federation_status import SiteStatus
from fedspan.errors import ClientError
from typed import assert_refused, call


class Federation:
    """Sites as they are at each look in turn; None: the server does not answer."""

    def __init__(self, *looks: Sequence[SiteStatus] | None) -> None:
        self.looks = list(looks)

    @contextmanager
    def connect(self, kit: Path) -> Iterator[Sequence[SiteStatus]]:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look is None:
            raise ClientError("The server at host:8003 cannot be reached.")
        yield look

    def survey(
        self, session: Sequence[SiteStatus], names: Sequence[str] | None = None, *, facts: bool = False
    ) -> list[SiteStatus]:
        return [one for one in session if names is None or one.name in names]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> type[Federation]:
    class Placed(Federation):
        def __init__(self, *looks: Sequence[SiteStatus] | None) -> None:
            super().__init__(*looks)
            monkeypatch.setattr(status_command, "connect", self.connect)
            monkeypatch.setattr(status_command, "survey_sites", self.survey)
            monkeypatch.setattr(status_command, "keep_session", lambda kit: nullcontext())
            monkeypatch.setattr(status_command, "count_days", lambda path: 12)
            monkeypatch.setattr(status_command, "_LOOK_AGAIN_AFTER", 0.0)

    return Placed


NORTH = SiteStatus("north", answers=True, fedspan="0.2.0", days=200)
EAST = SiteStatus("east", answers=True, jobs=("0123456789ab",), days=9)
LOST = SiteStatus("south", answers=False, silent_for=4.2)


def test_everybody_who_is_there_is_named_with_what_they_do(at: type[Federation]) -> None:
    at([EAST, NORTH])
    done = call("federation", "status", "kit")
    assert done.exit_code == 0
    server, east, north, own = done.stdout.splitlines()
    assert server == "server: answers"
    assert east.split(maxsplit=1) == ["east", "carries out 01234567; certificate 9 days left: renew it"]
    assert north.split(maxsplit=1) == ["north", "idle; fedspan 0.2.0; certificate 200 days left"]
    assert own == "this kit's certificate: 12 days left"


@pytest.mark.parametrize(
    ("look", "words"),
    [
        ([NORTH, LOST], "does not answer; last heard of 4 s ago"),
        ([], "no site is connected"),
        (None, "cannot be reached"),
    ],
    ids=["a site", "nobody", "the server"],
)
def test_who_does_not_answer_is_named_and_the_code_says_so(
    at: type[Federation], look: list[SiteStatus] | None, words: str
) -> None:
    at(look)
    done = call("federation", "status", "kit")
    assert done.exit_code == 1
    assert words in done.stdout


def test_a_program_reads_one_line_of_json(at: type[Federation]) -> None:
    at([EAST, LOST])
    told = json.loads(call("federation", "status", "kit", "--json").stdout)
    assert told["server"] == "answers"
    assert [(site["name"], site["answers"]) for site in told["sites"]] == [("east", True), ("south", False)]
    at(None)
    assert json.loads(call("federation", "status", "kit", "--json").stdout)["sites"] == []


def test_it_waits_for_a_server_and_for_sites_that_are_named(at: type[Federation]) -> None:
    at(None, [NORTH, LOST], [NORTH, SiteStatus("south", answers=True)])
    done = call("federation", "status", "kit", "--wait-for", "north, south", "--within", "30s")
    assert done.exit_code == 0
    assert "south" in done.stdout
    at([NORTH, LOST])
    late = call("federation", "status", "kit", "--wait-for", "south", "--within", "0.2s")
    assert_refused(late, 1, "Not all sites were there in time", "site 'south' does not answer")

"""Refusals are counted over processes and restarts, and nothing but the administrator opens a table again."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from fedspan.deployment.site_rules.shutter import MOST, Shutter
from fedspan.errors import InputError, PolicyRefusal


def test_the_fifth_refusal_shuts_one_table_and_no_other(tmp_path: Path) -> None:
    assert [Shutter(tmp_path).count("a") for _ in range(4)] == [1, 2, 3, 4]
    Shutter(tmp_path).check_open("a")
    Shutter(tmp_path).count("b")
    assert Shutter(tmp_path).count("a") == MOST
    with pytest.raises(PolicyRefusal, match="table 'a' is shut at this site"):
        Shutter(tmp_path).check_open("a")
    Shutter(tmp_path).check_open("b")
    assert Shutter(tmp_path).list_shut() == ["a"]


def test_refusals_of_yesterday_do_not_count_and_a_table_that_was_shut_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for day in range(10):
        monkeypatch.setattr(time, "time", lambda day=day: now + day * 25 * 3600)
        assert Shutter(tmp_path).count("a") == 1
    for _ in range(4):
        Shutter(tmp_path).count("a")
    for later in (-(10**9), 0, 10**9):  # whatever the clock says
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        with pytest.raises(PolicyRefusal):
            Shutter(tmp_path).check_open("a")
        Shutter(tmp_path).count("a")
        assert Shutter(tmp_path).list_shut() == ["a"]


def test_a_clock_that_is_set_back_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for turn in range(MOST):
        monkeypatch.setattr(time, "time", lambda turn=turn: now - turn * 10**6)
        Shutter(tmp_path).count("a")
    assert Shutter(tmp_path).list_shut() == ["a"]


def test_only_its_administrator_opens_it(tmp_path: Path) -> None:
    for _ in range(MOST):
        Shutter(tmp_path).count("a")
    assert Shutter(tmp_path).reopen("a")
    Shutter(tmp_path).check_open("a")
    assert not Shutter(tmp_path).reopen("a")
    assert Shutter(tmp_path).count("a") == 1  # and counts anew


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"times": ["x"], "shut": false}}'])
def test_a_count_that_cannot_be_read_shuts_everything(tmp_path: Path, text: str) -> None:
    shutter = Shutter(tmp_path)
    shutter.path.parent.mkdir()
    shutter.path.write_text(text)
    with pytest.raises(PolicyRefusal, match="is shut"):
        shutter.check_open("a")
    assert shutter.count("a") == MOST
    with pytest.raises(InputError, match="all tables of this site are shut"):
        shutter.list_shut()
    assert shutter.reopen("a")
    shutter.check_open("a")


def test_a_refusal_that_cannot_be_written_down_shuts_everything(tmp_path: Path) -> None:
    (tmp_path / "fedspan").write_text("a file where the folder should be")
    shutter = Shutter(tmp_path)
    assert shutter.count("a") == MOST
    with pytest.raises(PolicyRefusal):
        shutter.check_open("a")


def count_once(kit: Path) -> int:
    return Shutter(kit).count("a")


def test_processes_that_count_at_once_lose_nothing(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        assert sorted(pool.map(count_once, [tmp_path] * 4)) == [1, 2, 3, 4]
    record = json.loads(Shutter(tmp_path).path.read_text())["a"]
    assert (len(record["times"]), record["shut"]) == (4, False)

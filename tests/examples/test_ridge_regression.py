"""examples/ridge_regression: its own test, and the properties of every algorithm, for one from outside the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import test_asks as asks
import test_conformance as conformance
from table import labelled

from ridge_regression import Ridge
from ridge_regression.conformance_row import ROW

ROOT = Path(__file__).resolve().parents[2]
every_channel = pytest.mark.parametrize("channel", conformance.CHANNELS)


def test_its_own_test_passes() -> None:
    folder = ROOT / "examples" / "ridge_regression"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_ridge.py")]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'examples'}"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_channel
def test_it_has_the_properties_of_every_algorithm(channel: str, tmp_path: Path) -> None:
    conformance.test_the_order_in_which_clients_are_given_does_not_matter(ROW, channel)
    conformance.test_the_ledger_counts_the_bytes_of_the_wire(ROW, channel)
    conformance.test_messages_through_bytes_give_the_same_result(ROW, channel)
    for number, test in enumerate(
        (
            conformance.test_a_run_cut_after_every_round_and_resumed_ends_to_the_bit_as_one_that_was_not,
            conformance.test_a_round_cut_off_in_the_middle_is_repeated_to_the_bit,
        )
    ):
        test(ROW, channel, tmp_path / str(number))


@pytest.mark.parametrize("check", [False, True])
def test_it_asks_what_it_says(check: bool) -> None:
    server = Ridge(check=check)
    assert {heard.task for heard in asks.listen(server, labelled(), rounds=2)} == server.asks()

"""What one sees while a run goes on, in a pipe and on a real (pseudo-)terminal, and what Ctrl-C does there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import spawn
from rich.console import Console

from fedspan.cli.progress import RoundDisplay
from fedspan.core.checkpoint import load_tree
from fedspan.core.ledger import Exchange, Ledger, RoundEnd
from fedspan.core.run import Info
from fedspan.jobs.watching import Outlook

Fedspan = Callable[..., Any]
NOTICE = "stopping after this round; Ctrl-C again stops at once"


@pytest.fixture
def slow(world: Path) -> Path:
    """A job of so many rounds that nobody waits for them."""
    for i, name in enumerate(("north", "south")):
        np.save(world / f"{name}.npy", np.random.default_rng(i).normal(size=(80, 200)))
    job = (world / "job.toml").read_text().replace(".csv", ".npy").replace("krylov", "ssi")
    (world / "job.toml").write_text(job.replace("[data]", "tol = 0.0\nmax_rounds = 100000\n[data]"))
    return world


def rounds_in(folder: Path) -> int:
    return int(load_tree(folder / "checkpoint" / "round.safetensors", "checkpoint")["round"])


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines that it printed up to the first with this text."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(process.communicate())


LINE = (
    r"round (\d+)/100000  objective [\d.e+]+  KKT \d\.\d\de[+-]\d\d  up [\d.]+ [kM]B  down [\d.]+ [kM]B  "
    r"time [\d.]+ m?s  left about [\w. ]+  answered 2/2\n"
)


@pytest.mark.parametrize("every", [1, 1000])
def test_a_line_has_everything_and_ctrl_c_stops_after_the_round_with_a_checkpoint(
    slow: Path, fedspan: Fedspan, every: int
) -> None:
    process = spawn("run", "job.toml", "--set", f"run.checkpoint_every={every}", "--out", "run", cwd=slow)
    lines = read_until(process, "round 1/")
    assert process.stdout
    lines.append(process.stdout.readline())  # a second later: that is many rounds
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    stopped = rounds_in(slow / "run")
    shown = [re.fullmatch(LINE, line) for line in (*lines, *rest.splitlines(keepends=True)) if line.startswith("round")]
    assert all(shown)
    numbers = [int(line[1]) for line in shown if line]
    assert numbers[0] == 1
    assert numbers[1] > 2  # a line every second, not every round
    assert numbers[-1] == stopped  # and one at the end
    assert stderr == f"{NOTICE}\nerror: Stopped after round {stopped}; go on with: fedspan resume run\n"
    assert stopped >= 5
    assert Ledger.read(slow / "run" / "ledger.jsonl").rounds == stopped  # no round was lost

    job = slow / "run" / "job.toml"  # only now it may end
    job.write_text(job.read_text().replace("max_rounds = 100000", f"max_rounds = {stopped + 3}"))
    result = fedspan("resume", "run")
    assert result.exit_code == 0, result.output
    told = [int(number) for number in re.findall(r"^round (\d+)/", result.stdout, re.MULTILINE)]
    assert (told[0], told[-1]) == (stopped + 1, stopped + 3)


class Terminal:
    """A process that believes it is typed at."""

    def __init__(self, columns: int, folder: Path, *words: str) -> None:
        self.seen = ""
        self.code: int | None = None
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm"
            os.environ.pop("COLUMNS", None)
            os.execv(sys.executable, [sys.executable, "-m", "fedspan.cli.main", *words])  # noqa: S606
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.code is None:  # the test failed
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def until(self, pattern: str, patience: float = 60.0) -> str:
        """What it shows, without colours, until the pattern is there (or until it ends)."""
        end = time.monotonic() + patience
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, self.seen[-2000:]
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    more = os.read(self._fd, 1 << 16)
                except OSError:  # the other end is closed
                    break
                self.seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", more.decode(errors="replace"))
        return self.seen

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def end(self) -> int:
        self.until("never to be seen")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_terminal_it_is_live_and_ctrl_c_is_a_key(slow: Path, columns: int) -> None:
    with Terminal(columns, slow, "run", "job.toml", "--out", "run") as terminal:
        shown = terminal.until(r"(?s)answered.*2/2")
        for label in ("round", "objective", "KKT", "up", "down", "time", "left", "answered"):
            assert label in shown
        assert "…" not in shown.replace("opening the clients …", "")  # nothing is cut off
        terminal.press(b"\x03")
        assert terminal.end() == 1
    assert NOTICE in terminal.seen
    stopped = rounds_in(slow / "run")
    assert f"error: Stopped after round {stopped}; go on with: fedspan resume run" in terminal.seen


def test_pressed_twice_it_stops_at_once(world: Path) -> None:
    """In a round that takes for ever: the engine never comes back."""
    script = (
        "import os, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell may have had ignored
        "from fedspan.core.checkpoint import Checkpoint\n"
        "from fedspan.jobs._stop import Stop\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    with Stop(Checkpoint('x'), quiet=False) as stop:\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print(stop.asked, signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "True True\n"
    assert done.stderr == f"{NOTICE}\n"


def test_who_is_out_and_what_privacy_was_spent_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr("fedspan.cli.progress._LINE_EVERY", 0.0)
    ledger = Ledger()
    with RoundDisplay(Console(width=200), Outlook(ledger, 9, 0.0, budget=(2.0, 1e-6))) as progress:
        for number, missing in ((1, ("south",)), (2, ())):
            ledger.add(Exchange(number, 0, "x", ("north", "south"), (1, 1), (1, 1), (0.1, 0.1), missing, noise=10.0))
            ledger.add(RoundEnd(number, 0.1, {"objective": 1.0}))
            progress(Info(number, np.zeros(1), {}, ledger))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("answered 1/2  out south")
    assert second.endswith("answered 2/2")
    spent = re.search(r"ε ([\d.]+)/2  ", first)
    assert spent
    assert float(spent[1]) == pytest.approx(_one_release(10.0, 1e-6), rel=0.01)


def _one_release(z: float, delta: float) -> float:
    """ε of one Gaussian release by its closed form (Balle and Wang 2018), as an oracle."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    mu = 1 / z
    return float(brentq(lambda e: norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta, 0.01, 5))

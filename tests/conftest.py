"""What several folders of tests share: settings of hypothesis, a small federation, real data sets if they are there."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fedspan.core.protection import Protection
from fedspan.core.protocol import NOT_ASKED, Ask
from fedspan.engines import InProcess
from fedspan.secure.session import SecureSession

# Shared machines are slow at times: a deadline would make tests fail by chance.
# In CI the same examples every time: a rare one is for the people who write code, not for those who land it.
settings.register_profile(
    "fedspan", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("fedspan")

# Budgets of sites that tests set up are kept apart from those of this machine's user.
os.environ["FEDSPAN_STATE"] = tempfile.mkdtemp(prefix="fedspan-state-")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], dict[str, Any]]:
    """The arrays of a real data set by name; the test is skipped if the data set is not on this machine."""
    folder = Path(os.environ.get("FEDSPAN_DATA", ROOT.parent / "shared" / "data"))

    def load(name: str) -> dict[str, Any]:
        path = folder / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"the data set {name!r} is not in {folder}; say where it is with FEDSPAN_DATA")
        with np.load(path, allow_pickle=False) as z:
            return {key: z[key] for key in z.files}

    return load


@pytest.fixture
def hospitals() -> dict[str, np.ndarray]:
    """Five uneven clients of rows with 12 features: a decaying spectrum, a mean that is not zero, unlike scales."""
    rng = np.random.default_rng(7)
    mix = np.linalg.qr(rng.normal(size=(12, 12)))[0] * 0.8 ** np.arange(12)
    sizes = {"ada": 40, "bo": 13, "cy": 25, "dee": 7, "eve": 31}
    return {name: rng.normal(size=(n, 12)) @ mix.T + np.arange(12) for name, n in sizes.items()}


@pytest.fixture
def shadowed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Beside every secure exchange the same ask of a plain session, whose replies are added up exactly.

    Fills a list of (largest error of the sum) / (what the fixed-point step allows).
    """
    errors: list[float] = []
    begin, exchange = InProcess.start, SecureSession.exchange

    def start_both(self: InProcess, server: Any, channel: Any, seed: int, *more: Any) -> Any:
        session: Any = begin(self, server, channel, seed, *more)
        noised = [Protection(more[0].plan)] if more and more[0] and more[0].plan else []
        session.shadow = begin(InProcess(self.data, threads=1), server, channel, seed, *noised)
        return session

    def exchange_both(self: Any, ask: Ask, cohort: Any, *place: int) -> Any:
        replies, event = exchange(self, ask, cohort, *place)
        plain, _ = self.shadow.exchange(Ask(ask.task, ask.arrays), cohort, *place)
        for name, total in replies.total.items():
            parts = np.stack([arrays[name] for client, arrays in plain.each.items() if client not in replies.missing])
            if parts.dtype.kind != "f":
                known = ~replies.wrapped.get(name, np.zeros(total.shape[-1:], dtype=bool))  # others are asked for again
                if name in ask.narrow:
                    known &= ask.narrow[name].columns != NOT_ASKED
                assert total[..., known].tolist() == parts.sum(axis=0, dtype=np.int64)[..., known].tolist()
                errors.append(0.0)
                continue
            exact = np.apply_along_axis(math.fsum, 0, parts)
            room = len(parts) * 2.0**-53 + 2.0**-52 * np.abs(exact)
            errors.append(float(np.max(np.abs(total - exact) / room, initial=0.0)))
        return replies, event

    monkeypatch.setattr(InProcess, "start", start_both)
    monkeypatch.setattr(SecureSession, "exchange", exchange_both)
    return errors

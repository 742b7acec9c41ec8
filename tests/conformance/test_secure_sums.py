"""Every algorithm under secure aggregation: each of its sums is right to the step, or it is refused with the reason."""

from __future__ import annotations

import pytest
from table import TABLE

from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.errors import ProtocolError
from fedspan.secure.masking import Secure

SUM_ONLY = {
    "ssi",
    "krylov",
    "krylov rounded",
    "krylov wide",
    "krylov wide rounded",
    "faps",
    "faps accelerated",
    "localpower",
    "drsvd",
    "gram",
    "noisy gram",
    "noisy block",
    "newton",
    "newton by gradients",
    "least squares",
    "poisson regression",
    "huber regression",
}


@pytest.mark.parametrize("threshold", [None, 3], ids=["all", "shares"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in TABLE])
def test_every_sum_is_that_of_the_plain_run_to_the_step(
    name: str, threshold: int | None, shadowed: list[float]
) -> None:
    row = TABLE[name]
    try:
        engine = InProcess(row.clients(), threads=1)
        run(row.server, engine, rounds=row.rounds, seed=3, secure=Secure(threshold), privacy=row.plan())
    except ProtocolError as error:
        assert "sees sums only" in str(error)  # noqa: PT017 - an algorithm asks for sums, or is refused
        assert name not in SUM_ONLY
        return
    assert len(shadowed) >= 2
    assert max(shadowed) <= 1

"""Sums over few rows: `min_rows` of a site's file holds for every part of its rows over which there is a sum.

A third reading of the sites' side: batches whose size the server tells, parts of a batch, folds, and held-out rows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deployment"))

from orders import write_site

from fedspan.algorithms import FedSgd, PersonalAuto, VerticalSgd
from fedspan.algorithms.learning import vertical
from fedspan.channel import Channel, wire
from fedspan.core import protocol
from fedspan.core.rng import Streams
from fedspan.deployment.site_service import SiteService
from fedspan.engines.start import StartMessage
from fedspan.errors import ProtocolError
from fedspan.numerics.swish import Swish

defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])
NET, LEAST = Swish(3, 2), 6
RNG = Streams(0, 1, 0, "a")


def draw_rows(n: int = 40, d: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, d))


def leading_direction(G: np.ndarray) -> np.ndarray:
    """The one direction that a matrix of rank one has."""
    values = np.linalg.svd(G, compute_uv=False)
    assert values[1] <= 1e-9 * values[0], "not of rank one"
    return np.asarray(np.linalg.svd(G)[0][:, 0])


def is_a_row(direction: np.ndarray, X: np.ndarray) -> bool:
    """Whether the direction is that of one of the rows, up to its length."""
    return bool((np.abs(X @ direction) / np.linalg.norm(X, axis=1) > 1 - 1e-9).any())


# ---------------------------------------------------------------------------------------- batches


@defences
def test_a_server_does_not_make_a_batch_smaller_than_its_site_sums(
    tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job says batch_size = 6. In a run that is not verified the server asks for one row in its question."""
    X, y = draw_rows(), np.arange(40) % 2
    lines = [",".join(map(repr, row)) + f",{label}" for row, label in zip(X.tolist(), y, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d,ill", *lines]) + "\n", encoding="utf-8")
    own = {"path": str(tmp_path / "rows.csv"), "columns": list("abcd"), "label": "ill", "classes": [0, 1]}
    kit = write_site(tmp_path / "ada", {"default": {**own, "min_rows": LEAST if defended else 1}}, secure=False)
    site = SiteService("ada", kit)
    told = {"labels": [0, 1]}
    start = StartMessage("0" * 32, 0, FedSgd(NET, batch=LEAST), Channel(), 0, ("ada", "bo", "cy"), told=told, rounds=5)
    assert site.open(start.to_json()) == '{"opened": "' + "0" * 32 + '"}'

    def ask(task: str, place: tuple[int, int], **arrays: Any) -> Any:
        answer = site.exchange(wire.encode(wire.Message(task, *place, arrays)), -1)
        return answer if isinstance(answer, str) else wire.decode(answer).arrays

    ask("open", (0, 0))
    omega = np.random.default_rng(1).normal(size=NET.start(4, np.random.default_rng(2)).size)
    answer = ask("gradient", (1, 0), omega=omega, batch=np.array(1))
    if defended:
        assert "refused [" in answer
        assert "min_rows" not in answer
        return
    hidden_layer = NET.split(answer["grad"][0])[1]
    assert is_a_row(leading_direction(hidden_layer), X)


@pytest.mark.parametrize("least", [LEAST, 1], ids=["defended", "defence off"])
def test_the_same_share_of_every_site_is_not_a_single_row_of_a_small_one(least: int) -> None:
    """With `clip` a batch is the same share of all sites' rows: of a small site's it would be one."""
    X = draw_rows(10)
    server = FedSgd(NET, batch=20, clip=1.0)
    client: Any = server.client((X, np.arange(10) % 2), **server.client_options())  # type: ignore[call-arg]
    client.least_rows = least
    omega = np.random.default_rng(1).normal(size=NET.start(4, np.random.default_rng(2)).size)
    _, sent = client.clipped(client.init(), {"omega": omega, "share": np.array(1e-3)}, RNG)
    assert int(sent["n"]) == least
    if least == 1:
        assert is_a_row(leading_direction(NET.split(sent["grad"][0])[1]), X)


@pytest.mark.parametrize("least", [LEAST, 1], ids=["defended", "defence off"])
def test_the_rows_of_a_rare_class_are_not_alone_in_their_part_of_a_batch(least: int) -> None:
    """A job with a limit on a class is shown the gradient of that class's rows of each batch: often of a single one."""
    X, part = draw_rows(), (np.arange(40) % 5 == 0).astype(np.int64)  # 8 rows of the rare class
    server = FedSgd(NET, batch=8)
    client: Any = server.client((X, part, None, part, 2), **server.client_options())  # type: ignore[call-arg]
    client.least_rows = least
    omega = np.random.default_rng(1).normal(size=NET.start(4, np.random.default_rng(2)).size)
    seen = []
    for k in range(20):
        _, sent = client.gradient(client.init(), {"omega": omega}, Streams(0, k, 0, "a"))
        values, vectors = _decompose(NET.split(sent["grad"][1])[1])
        seen.append(values[1] <= 1e-9 * max(values[0], 1e-300) and is_a_row(vectors[:, 0], X))
    assert any(seen) == (least == 1)


def _decompose(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    U, values, _ = np.linalg.svd(G)
    return values, U


def test_parts_that_are_drawn_by_themselves_give_the_same_gradient_on_average() -> None:
    X, part = draw_rows(), (np.arange(40) % 5 == 0).astype(np.int64)
    server = FedSgd(NET, batch=8)
    client: Any = server.client((X, part, None, part, 2), **server.client_options())  # type: ignore[call-arg]
    client.least_rows = 3
    omega = np.random.default_rng(1).normal(size=NET.start(4, np.random.default_rng(2)).size)
    _, whole = client.gradient(client.init(), {"omega": omega, "batch": np.array(0)}, RNG)
    drawn = [
        client.gradient(client.init(), {"omega": omega}, Streams(0, k, 0, "a"))[1]["grad"].astype(np.float64)
        for k in range(600)
    ]
    deviation = np.std(drawn, axis=0) / np.sqrt(len(drawn))
    assert (np.abs(np.mean(drawn, axis=0) - whole["grad"]) < 5 * deviation + 1e-6).all()


@defences
def test_a_batch_of_a_vertical_run_is_no_single_row(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server tells the rows of each batch by their numbers; the same row many times is one row."""
    if not defended:
        monkeypatch.setattr(vertical, "require_rows", lambda client, rows: None)
    X = draw_rows(6)
    server = VerticalSgd(NET, batch=LEAST)
    client: Any = server.client((X, np.arange(6) % 2), **server.client_options())  # type: ignore[call-arg]
    client.least_rows = LEAST
    weights, W0 = np.random.default_rng(1).normal(size=(4, 3)), np.random.default_rng(2).normal(size=(3, 2))
    state, _ = client.take(client.init(), {"omega": weights, "first": np.array(0), "features": np.array(4)}, RNG)
    for rows in (np.array([2]), np.full(LEAST, 2)):
        asked = {"rows": rows, "H": X[rows] @ weights, "W0": W0}
        for task in (client.forward, client.head, client.backward, client.measure_together, client.count_parts):
            if defended:
                with pytest.raises(ProtocolError, match=r"sums at this site are over at least 6 \(min_rows"):
                    task(state, asked, RNG)
        if not defended:
            assert is_a_row(leading_direction(client.backward(state, asked, RNG)[1]["block"][0]), X)
    every = {"rows": np.arange(6), "H": X @ weights, "W0": W0}
    assert client.backward(state, every, RNG)[1]["block"].shape == (1, 4, 3)


def test_the_last_rows_of_a_long_table_are_no_block_of_their_own() -> None:
    """A pass over all rows of a vertical run goes in blocks, of each of which there is a sum."""
    sizes = [len(block) for block in vertical._split_rows(np.arange(vertical._ROWS_OF_A_PASS + 1))]
    assert len(sizes) == 2
    assert min(sizes) >= vertical._ROWS_OF_A_PASS // 2


# ---------------------------------------------------------------------------------------- folds and held-out rows


@pytest.mark.parametrize("least", [LEAST, 1], ids=["defended", "defence off"])
def test_as_many_folds_as_rows_do_not_show_the_rows(least: int) -> None:
    """All rows less all but one fold are that fold. An opening may ask for any number of folds, also a verified one."""
    X = draw_rows(20)
    server = PersonalAuto(k=2, folds=20, share="sums", collect=False)
    client: Any = server.client(X, **server.client_options())  # type: ignore[call-arg]
    client.least_rows = least
    _, sent = client.fold(client.init(), {"folds": np.array(20), "mean": np.zeros(4), "scale": np.ones(4)}, RNG)
    without = sent["n"][0] - sent["n"][1:]
    assert without[without > 0].min() == least
    assert without.sum() == 20


def test_of_few_rows_that_are_held_out_nothing_is_said() -> None:
    y = np.r_[np.zeros(36, dtype=np.int64), np.ones(4, dtype=np.int64)]
    server = FedSgd(NET, batch=8)
    options = {**server.client_options(), "validation": 0.25}
    omega = np.random.default_rng(1).normal(size=NET.start(4, np.random.default_rng(2)).size)

    def measure(least: int) -> Any:
        client: Any = server.client((draw_rows(), y, None, y, 2), **options)  # type: ignore[call-arg]
        client.least_rows = least
        return client.measure_parts(client.init(), {"omega": omega}, RNG)[1]

    assert measure(1)["n"].tolist() == [9.0, 1.0], "a limit on a class would show the loss of a single row"
    sent = measure(LEAST)
    assert sent["n"].tolist() == [9.0, 0.0]
    assert sent["loss"][1] == sent["right"][1] == 0
    assert sent["loss"][0] == measure(1)["loss"][0]


def test_sums_over_no_rows_are_none() -> None:
    server = FedSgd(NET)
    client: Any = server.client((draw_rows(), np.arange(40) % 2), **server.client_options())  # type: ignore[call-arg]
    client.least_rows = LEAST
    protocol.require_rows(client, 0)
    with pytest.raises(ProtocolError, match="A sum over 5 rows was asked for"):
        protocol.require_rows(client, LEAST - 1)

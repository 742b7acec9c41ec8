"""Whatever comes over a network, or out of a file of ours: a value or one of our errors, in bounded memory and time."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from mutation import SIZES, fuzz, mutate_json, mutate_safetensors

import fedspan
from fedspan._foreign import parse_json
from fedspan.algorithms import Krylov
from fedspan.channel import Channel, chain, delta, only, pack, quantize, wire
from fedspan.channel.link import Receiver, Sender
from fedspan.channel.recipe import channel_from, recipes_of
from fedspan.core.checkpoint import Checkpoint, load_tree, save_tree
from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd, Started
from fedspan.core.rng import Streams
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot, SiteSnapshot
from fedspan.data.preparation import Preparation
from fedspan.deployment.server_job import RunRequest, read_outcome
from fedspan.deployment.site_service import _read_request
from fedspan.engines.handshake import Description, handshake
from fedspan.engines.start import StartMessage
from fedspan.engines.transport import read_answer
from fedspan.errors import FedspanError
from fedspan.privacy.budget import Budget, Cost

RNG = np.random.default_rng(0)
CHANNELS = {
    "plain": Channel().up,
    "pack": pack(),
    "quantize": quantize(3),
    "delta": delta(quantize(4)),
    "all": chain(only(["Y"], delta(quantize(5))), pack()),
}


def encode_messages(kind: str) -> list[bytes]:
    """Two messages of a link: the second may be a difference to the first."""
    sender, blobs = Sender(CHANNELS[kind], CHANNELS[kind].init()[0]), []
    for number in (1, 2):
        arrays = {"Y": RNG.normal(size=(6, 3)), "n": np.arange(12).reshape(4, 3) - 5, "s": np.array(2.5)}
        message = sender.encode(wire.Message("multiply", number, 0, arrays), Streams(0, number, 0, "a"))
        blobs.append(wire.encode(message))
        sender.commit(number)
    return blobs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", CHANNELS)
def test_messages(kind: str, size: int) -> None:
    blobs = encode_messages(kind)

    def read(data: bytes) -> None:
        receiver = Receiver(CHANNELS[kind])
        receiver.decode(wire.decode(blobs[0]))
        message = wire.decode(data)
        receiver.decode(message)
        wire.encode(message)

    fuzz(read, blobs, mutate_safetensors, examples=250 * size)


def make_snapshot() -> SessionSnapshot:
    stage = CHANNELS["all"]
    sender, receiver = Sender(stage, stage.init()[0]), Receiver(stage)
    message = sender.encode(wire.Message("t", 1, 0, {"Y": RNG.normal(size=(3, 2))}), Streams(0, 1, 0, "a"))
    receiver.decode(message)
    site = SiteSnapshot({"x": np.zeros(2)}, sender.snapshot(), receiver.snapshot(), {"t": {"question": "digest"}})
    return SessionSnapshot(HubSnapshot({"a": sender.snapshot()}, {"a": receiver.snapshot()}), {"a": site})


@pytest.mark.parametrize("size", SIZES)
def test_checkpoints(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a digest that fits: whoever makes a file to break us makes one."""
    run, checkpoint = {"seed": 1, "algorithm": "Krylov"}, Checkpoint(tmp_path)
    X = RNG.normal(size=(8, 4))
    state = fedspan.run(Krylov(2), fedspan.engines.InProcess({"a": X, "b": X}), rounds=2, seed=0).state
    checkpoint.save(run, 3, state, make_snapshot())
    monkeypatch.setattr("fedspan.core.checkpoint._digest", lambda *_: "0")
    checkpoint.save(run, 3, state, make_snapshot())

    def read(data: bytes) -> None:
        checkpoint.path.write_bytes(data)
        checkpoint.load(run, type(state))

    fuzz(read, [checkpoint.path.read_bytes()], mutate_safetensors, examples=600 * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["pca", "classifier", "gcca"])
def test_models(tmp_path: Path, kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspan.core.checkpoint._digest", lambda *_: "0")
    Xs = [RNG.normal(size=(12, 4)) for _ in range(3)]
    ys = [np.where(X[:, 0] > 0, "a", "b") for X in Xs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {
            "pca": lambda: fedspan.FederatedPCA(2, random_state=0).fit(Xs),
            "classifier": lambda: fedspan.FederatedClassifier(rounds=2, hidden=2, batch_size=4, random_state=0).fit(
                Xs, ys
            ),
            "gcca": lambda: fedspan.FederatedGCCA(2, random_state=0).fit(Xs),
        }[kind]()
    path = tmp_path / "model.safetensors"
    made.save(path)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        type(made).load(path)

    fuzz(read, [path.read_bytes()], mutate_safetensors, examples=300 * size)


@pytest.mark.parametrize("size", SIZES)
def test_trees_of_any_kind(tmp_path: Path, size: int) -> None:
    path = tmp_path / "scores"
    save_tree(path, "table of scores", {"a": np.zeros((3, 2), dtype=np.float32), "b": [1, (2, "x"), {"c": None}]})

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load_tree(path, "table of scores")

    fuzz(read, [path.read_bytes()], mutate_safetensors, examples=300 * size)


def make_start() -> bytes:
    message = StartMessage(
        "run12345",
        0,
        Krylov(3),
        Channel(CHANNELS["all"], CHANNELS["delta"]),
        7,
        ("a", "b", "c"),
        threshold=3,
        table={"name": "default", "preparation": asdict(Preparation(columns=("x", "y"), id="p"))},
        told={"labels": ["a", "b"]},
    )
    return message.to_json().encode()


DESCRIPTION: Description = {
    "versions": {"fedspan": "0.2.0"},
    "secure": True,
    "others": 2,
    "n_features": 3,
    "digest": "0" * 32,
    "units": {"x": "cm"},
    "names": ["x", "y", "z"],
    "rows": 5,
    "labels": ["a", 1, 2.5],
    "columns": ["x", "y", "z"],
    "categories": {"w": ["f", "m"]},
    "ids": True,
    "keyed": False,
    "kinds": {"x": "number"},
}
REQUEST = RunRequest(
    "run12345",
    "FederatedPCA",
    {"n_components": 2, "participation": None},
    table={"name": None, "preparation": asdict(Preparation())},
    privacy={"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0},
    secure={"enabled": True, "threshold": 3},
)


def read_request(data: bytes) -> None:
    RunRequest.from_json(parse_json_or_refuse(data)).choose_secure(3)


def parse_json_or_refuse(data: bytes) -> object:
    try:
        return parse_json(data, constants=True)
    except ValueError as error:
        raise FedspanError(str(error)) from None


class OneSite:
    """A transport to one site, which says always the same."""

    def __init__(self, said: str) -> None:
        self.said = said

    def describe(self, site: str, asked: str, timeout: float) -> str:
        return self.said


def read_description(text: str) -> None:
    handshake(OneSite(text), ["north"], {"fedspan": "0.2.0", "table": {}}, timeout=1.0)  # type: ignore[arg-type]


def read_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


JSON_READERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "start messages": (read_text(StartMessage.from_json), [make_start()]),
    "requests for a description": (
        read_text(_read_request),
        [json.dumps({"fedspan": "0.2.0", "table": {"name": "default", "alone": True}, "labels": True}).encode()],
    ),
    "run requests": (read_request, [json.dumps(REQUEST.to_json()).encode()]),
    "answers of sites": (
        read_text(lambda text: read_answer(text, "north")),
        [b'{"opened": "run12345"}', b'{"opened": ["a", {"b": null}], "more": 1.5}'],
    ),
    "descriptions of tables": (read_text(read_description), [json.dumps(DESCRIPTION).encode()]),
    "recipes of channels": (
        lambda data: channel_from(parse_json_or_refuse(data)),
        [json.dumps(recipes_of(Channel(CHANNELS["all"], CHANNELS["delta"]))).encode()],
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", JSON_READERS)
def test_json(name: str, size: int) -> None:
    read, seeds = JSON_READERS[name]
    fuzz(read, seeds, mutate_json, examples=300 * size)


@pytest.mark.parametrize("size", SIZES)
def test_ledgers(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger()
    ledger.add(Started("Krylov", "spectral", {"k": 2, "x": None}, 3, "as requested"))
    ledger.add(Exchange(1, 0, "multiply", ("a", "b"), (9, 9), (8, 0), (0.1, 0.2), ("b",), {"b": "late"}, 2.0, True))
    ledger.add(RoundEnd(1, 0.5, {"kkt": 0.1, "change": float("nan")}))
    ledger.add(Note("a note"))
    ledger.save(path)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        Ledger.read(path).history()

    lines = path.read_bytes()
    fuzz(read, [lines, *(line + b"\n" for line in lines.splitlines())], examples=600 * size)
    fuzz(read, lines.splitlines(), mutate_json, examples=200 * size)


@pytest.mark.parametrize("size", SIZES)
def test_budgets(tmp_path: Path, size: int) -> None:
    path = tmp_path / "budget.json"
    Budget.grant(path, 5.0, 1e-6).reserve("run", {"gram": Cost(4.0, 1.0, 1)}, "add-remove")
    seed = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        assert Budget(path).allowance[0] < float("inf")

    fuzz(read, [seed], mutate_json, examples=300 * size)


@pytest.mark.parametrize("size", SIZES)
def test_outcomes(tmp_path: Path, size: int) -> None:
    def read(data: bytes) -> None:
        (tmp_path / "outcome.json").write_bytes(data)
        read_outcome(tmp_path)

    fuzz(read, [b'{"done": false, "error": "x", "input": true}'], mutate_json, examples=200 * size)

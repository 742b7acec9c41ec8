"""Sums that the server cannot look into: our secure aggregation beside TenSEAL (CKKS).

10,000 numbers at each of 3 and of 10 clients: what one sum costs once keys are there, in bytes per client on both
links, time of one client, time of the server, and the largest error of the sum. Keys are apart: bytes per client once
per run. Ours needs every client's answer here; the clients' work includes making the numbers (a small product). TenSEAL
has the least parameters that are 128-bit secure and as exact as it gets in one ciphertext modulus (degree 4096, moduli
of 54 and 55 bits, scale 2⁴⁰); its clients share one secret key, so that one client and the server together can
decrypt everyone's numbers, which is not so in ours. In ours the server learns the sum; in TenSEAL the clients do.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from environment import call, versions

from harness import Config, Found, Row, SkippedError

D, K, ROWS, REPEAT = 1000, 10, 20, 5
Costs = dict[str, float]


def exact(parts: list[np.ndarray], Z: np.ndarray) -> list[np.ndarray]:
    return [A.T @ (A @ Z) for A in parts]


def ours(m: int, arrays: list[np.ndarray]) -> Costs:
    from fedspan.algorithms import Ssi
    from fedspan.channel import Channel
    from fedspan.core.protection import Protection
    from fedspan.core.protocol import Ask, Sum
    from fedspan.engines import InProcess
    from fedspan.secure.masking import Secure

    *parts, Z = arrays
    clients = {f"{i:03d}": A for i, A in enumerate(parts[:m])}
    session: Any = InProcess(clients, threads=1).start(Ssi(k=K), Channel(), 0, Protection(None, Secure(), None))
    settle, multiply = Ask("settle", {}, Sum("n", "energy", "features")), Ask("multiply", {"Z": Z}, Sum("Y"))
    found, links = [], []
    for number, ask in enumerate([settle, settle] + REPEAT * [multiply]):
        started = time.perf_counter()
        replies, event = session.exchange(ask, tuple(clients), 1, number)
        whole = time.perf_counter() - started
        links.append(float(np.mean(event.bytes_up) + np.mean(event.bytes_down)))
        if ask is multiply:
            error = float(np.abs(np.asarray(replies.total["Y"]) - sum(exact(parts[:m], Z))).max())
            found.append((float(np.mean(event.seconds)), whole - sum(event.seconds), error))
    session.close()
    client, server, error = np.median(found, axis=0)
    # the block Z goes down too, which no sum needs: what goes down in TenSEAL is its result
    return {"bytes": links[-1], "keys": links[0] - links[1], "client": client, "server": server, "error": error}


def tenseal(m: int, arrays: list[np.ndarray]) -> Costs:
    import tenseal as ts

    *parts, Z = arrays
    keys = ts.context(ts.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=[54, 55])
    keys.global_scale = 2.0**40
    public = keys.copy()
    public.make_context_public()
    found = []
    for _ in range(REPEAT):
        started = time.perf_counter()
        sent = [ts.ckks_vector(keys, (A.T @ (A @ Z)).ravel()).serialize() for A in parts[:m]]
        encrypted = time.perf_counter()
        total = ts.ckks_vector_from(public, sent[0])
        for each in sent[1:]:
            total += ts.ckks_vector_from(public, each)
        back = total.serialize()
        summed = time.perf_counter()
        answer = np.array(ts.ckks_vector_from(keys, back).decrypt())
        client = (encrypted - started) / m + time.perf_counter() - summed
        error = np.abs(answer - np.ravel(sum(exact(parts[:m], Z)))).max()
        found.append((len(sent[0]) + len(back), client, summed - encrypted, error))
    size, client, server, error = np.median(found, axis=0)
    once = len(keys.serialize(save_secret_key=True))
    return {"bytes": size, "keys": float(once), "client": client, "server": server, "error": error}


METHODS = {f"{name}, {m}": partial(work, m) for m in (3, 10) for name, work in (("ours", ours), ("TenSEAL", tenseal))}


def small(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return arrays


def judge(arrays: list[np.ndarray], answer: Costs) -> Costs:
    return {name: float(value) for name, value in answer.items()}


def run(config: Config, data: Path) -> Found:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(ROWS, D)) for _ in range(10)] + [np.linalg.qr(rng.normal(size=(D, K)))[0]]
    rows: list[Row] = []
    for m in (3, 10):
        mine = call("sums", f"ours, {m}", arrays)
        try:
            peer = call("sums", f"TenSEAL, {m}", arrays)
        except SkippedError as error:
            rows.append(Row(f"TenSEAL, {m} clients", None, impossible=str(error)))
            continue
        for text, key, unit, scale in (
            ("kilobytes per client", "bytes", "kB", 1e-3),
            ("kilobytes of keys per client", "keys", "kB", 1e-3),
            ("time of a client", "client", "ms", 1e3),
            ("time of the server", "server", "ms", 1e3),
            ("largest error", "error", "", 1.0),
        ):
            row = Row(f"TenSEAL, {m} clients: {text}", mine[key] * scale, unit, against=peer[key] * scale)
            rows.append(row)
    return Found(rows, [0], {"numbers": D * K, "clients": [3, 10], "beside": versions("tenseal")})

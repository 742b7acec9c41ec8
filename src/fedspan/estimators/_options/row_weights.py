"""How much rows and clients count: from what `fit` is given to weights at the clients.

A row of weight 2 counts as two equal rows, as in scikit-learn. With `client_weight`, each client's weights are
multiplied by one number, so that the clients count what is said and the sum of all weights stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from fedspan._types import Array
from fedspan.data.clients import ClientData, Schema, blame_client, name_clients
from fedspan.data.remote_tables import RemoteTable
from fedspan.errors import InputError, suggest
from fedspan.estimators.parameters import is_number
from fedspan.numerics.operators import WeightedRows
from fedspan.privacy.request import PaperDP, RowDP

SampleWeight: TypeAlias = Mapping[str, object] | Sequence[object]  # one array for each client, as `clients`
ClientWeight: TypeAlias = str | Mapping[str, float]


def weigh_clients(
    data: Mapping[str, ClientData],
    schema: Schema,
    sample_weight: SampleWeight | None,
    client_weight: ClientWeight,
    privacy: object,
) -> dict[str, ClientData]:
    """The clients' data with the weights of their rows; as they are if every row counts once."""
    of_rows = _read_sample_weight(sample_weight, schema)
    if not of_rows and client_weight == "rows":
        return dict(data)
    if any(isinstance(source, RemoteTable) for source in data.values()):
        raise InputError(
            "sample_weight and client_weight are for clients whose rows this process can open, but the rows are at "
            "the sites of a federation. Leave them out."
        )
    _check_privacy(of_rows, schema, client_weight, privacy)
    weights = {name: of_rows.get(name, np.ones(schema.counts[name])) for name in data}
    total = sum(map(np.sum, weights.values()))
    if not total > 0:
        raise InputError("sample_weight must be above 0 for some rows, but all weights are 0.")
    shares = _read_shares(client_weight, weights)
    for name, share in shares.items():
        own = float(weights[name].sum())
        if share > 0 and not own > 0:
            raise InputError(
                f"client {name!r}: all weights of its rows are 0, so it cannot count what client_weight says."
            )
        weights[name] = weights[name] * (share * total / own if own > 0 else 0.0)
    if not total >= 2:
        raise InputError(
            f"The weights must add up to at least 2, because a row of weight 2 counts as two rows, but they add up to "
            f"{total:.3g}. Multiply all of them by one number, so that they are about 1."
        )
    return {name: _attach(source, weights[name]) for name, source in data.items()}


def _read_sample_weight(given: SampleWeight | None, schema: Schema) -> dict[str, Array]:
    """The weights by client: those that were given, or those of a column of the tables."""
    if given is None:
        found: Mapping[str, object] = schema.weights
    elif schema.weights:
        raise InputError("The tables have a column of weights already; leave sample_weight out.")
    elif isinstance(given, Mapping):
        found = {str(name): values for name, values in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        found = name_clients(given)
    else:
        raise InputError(
            "sample_weight must be a list or a mapping with one array per client, as the clients are, but is of type "
            f"{type(given).__name__}."
        )
    if found and set(found) != set(schema.counts):
        odd = sorted(set(found) ^ set(schema.counts))[0]
        missing = "has none for" if odd in schema.counts else "names no client in"
        raise InputError(f"sample_weight must have one array for each client, but {missing} {odd!r}.")
    return {name: _check_row_weights(name, values, schema.counts[name]) for name, values in found.items()}


def _check_row_weights(client: str, values: object, rows: int) -> Array:
    """The weights of one client's rows as float64, if they can be used; or where the first is that cannot."""
    with blame_client(client):
        try:
            weights = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("sample_weight must be numbers, but some are not.") from None
        if weights.shape != (rows,):
            raise InputError(
                f"sample_weight must have one number for each of the {rows} rows, but its shape is {weights.shape}."
            )
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise InputError(
                f"sample_weight must be finite and not negative, but row {bad[0] + 1} has {weights[bad[0]]:g} "
                f"({len(bad)} of {rows} cannot be used)."
            )
        return weights


def _read_shares(given: ClientWeight, weights: Mapping[str, Array]) -> dict[str, float]:
    """What each client counts, as a share of all; empty if it is as its rows say."""
    if isinstance(given, str):
        if given not in ("rows", "equal"):
            raise InputError(
                f"client_weight must be a known word, but is {given!r}. {suggest(given, ('rows', 'equal'))}"
            )
        return {} if given == "rows" else dict.fromkeys(weights, 1 / len(weights))
    if not isinstance(given, Mapping):
        raise InputError(
            "client_weight must be 'rows', 'equal' or a mapping from each client to a number, but is of type "
            f"{type(given).__name__}."
        )
    named = {str(name): value for name, value in given.items()}
    if set(named) != set(weights):
        odd = sorted(set(named) ^ set(weights))[0]
        missing = "has none for" if odd in weights else "names no client in"
        raise InputError(f"client_weight must have a number for each client, but {missing} {odd!r}.")
    for name, value in named.items():
        if not is_number(value) or not 0 <= value < np.inf:
            raise InputError(f"client_weight must be finite and not negative, but is {value!r} for client {name!r}.")
    total = float(sum(named.values()))
    if not total > 0:
        raise InputError("client_weight must be above 0 for some client, but is 0 for all.")
    return {name: float(value) / total for name, value in named.items()}


def _check_privacy(of_rows: Mapping[str, Array], schema: Schema, client_weight: ClientWeight, privacy: object) -> None:
    """Refuse weights for which a promise of privacy would not hold."""
    if isinstance(privacy, PaperDP):
        raise InputError("Weights cannot be combined with privacy=PaperDP(…), whose noise is that of a paper without.")
    if not isinstance(privacy, RowDP):
        return
    if client_weight != "rows":
        raise InputError(
            "client_weight cannot be combined with privacy=RowDP(…): a client's rows would count by how many they are, "
            "so that one row more or less changes what all others count. Use sample_weight, which may not."
        )
    for name, weights in of_rows.items():
        if weights.max(initial=0.0) > 1:
            row = int(np.argmax(weights > 1))
            raise InputError(
                f"client {name!r}: with privacy=RowDP(…) sample_weight must be at most 1, because the noise hides "
                f"rows that count once, but row {row + 1} has {weights[row]:g}. Divide all weights by the "
                "largest that is possible (not by the largest in the data, which would tell of a row)."
            )
    if privacy.delta * schema.rows >= 1:
        raise InputError(f"delta must be below 1 / number of rows, but is {privacy.delta!r} for {schema.rows} rows.")


def _attach(source: ClientData, weights: Array) -> ClientData:
    if callable(source):
        return partial(_open_weighted, source, weights)
    assert not isinstance(source, RemoteTable | WeightedRows)  # noqa: S101 - both are refused before
    return WeightedRows(source, weights)


def _open_weighted(source: object, weights: Array) -> WeightedRows:
    assert callable(source)  # noqa: S101 - for the type checker
    rows = source()
    return WeightedRows(rows, weights)

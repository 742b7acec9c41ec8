"""What clients with single cells agree on before a fit: common genes, and the most variable of them.

Everything is asked in the opening (round 0). What the server sees: every client's list of genes (no counts); then three
sums over the clients: the number of cells, and of each gene Σx and Σx² of normalised counts. With secure sums it sees
nothing else.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.field.dispersions import choose_most_variable, find_dispersions
from fedspan.core.protocol import PUBLIC, Ask, Client, Course, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

_MOST_GENE_TEXT = 1 << 26  # bytes of a list of genes that a client may send
_FEW_GENES = 0.5  # fewer common genes than that share of the first client's are worth a note


class CellSurvey(Protocol):
    """A client's cells, as far as they are looked at before they are rows."""

    def list_genes(self) -> list[str]: ...
    def add_moments(self, genes: Sequence[str]) -> tuple[int, Array, Array]: ...


class GenesClient(Client[None]):
    """A client that says of its cells only what is asked here."""

    State: ClassVar[type] = type(None)
    needs = "survey"

    def __init__(self, data: CellSurvey) -> None:
        self.survey = data

    def init(self) -> None:
        return None

    @task(releases={"genes": PUBLIC}, shows="which genes its file has")
    def list_genes(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The names of all genes, in their order."""
        return state, {"genes": pack_names(self.survey.list_genes())}

    @task(
        releases={"cells": None, "total": None, "squares": None},
        shows="its number of cells, and of each gene the sum of normalised counts and of their squares",
    )
    def add_moments(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """n, Σx and Σx² of the common genes."""
        n, total, squares = self.survey.add_moments(unpack_names(arrays["genes"]))
        return state, {"cells": np.array(n), "total": total, "squares": squares}


@dataclass(frozen=True)
class AgreedGenes:
    """The common genes, what is known of each, and which are used."""

    names: Array  # packed
    means: Array  # (g,)
    dispersions: Array  # (g,)
    dispersions_norm: Array  # (g,)
    chosen: Array  # (g,) of bool
    cells: int
    notes: tuple[str, ...]

    def list_genes(self) -> list[str]:
        """The names of the common genes."""
        return unpack_names(self.names)


@dataclass(frozen=True)
class AgreeOnGenes(Server[AgreedGenes]):
    """Genes that all clients have, and the `n_top_genes` most variable of them (0: all)."""

    n_top_genes: int = 2000

    State: ClassVar[type] = AgreedGenes
    client: ClassVar[type[Client[object]]] = GenesClient
    family: ClassVar[str] = "columns"

    def asks(self) -> frozenset[str]:
        return frozenset({"list_genes", "add_moments"})

    def course(self) -> Course:
        return Course((Turn("list_genes"), Turn("add_moments", after=["list_genes"])))

    def replay(self) -> Replay | str:
        return "the clients' own lists of genes are asked for, not a sum"

    def init(self, rng: Streams) -> Round[AgreedGenes]:
        told = (yield from complete(Ask("list_genes"))).each
        each = {client: unpack_names(arrays["genes"]) for client, arrays in told.items()}
        genes, notes = match_genes(each)
        asked = {"genes": pack_names(genes)}
        sums = (yield from complete(Ask("add_moments", asked, Sum("cells", "total", "squares")))).total
        n = float(sums["cells"])
        found = find_dispersions(n, sums["total"], sums["squares"])
        chosen = np.ones(len(genes), dtype=bool)
        if 0 < self.n_top_genes < len(genes):
            chosen = choose_most_variable(found.dispersions_norm, self.n_top_genes)
        varied = int(np.count_nonzero(sums["squares"] > 0))
        notes.append(
            f"{int(chosen.sum()):,} of {len(genes):,} common genes are used ({varied:,} are expressed anywhere), in "
            f"{int(n):,} cells."
        )
        return AgreedGenes(asked["genes"], *found, chosen, int(n), tuple(notes))

    def round(self, state: AgreedGenes, rng: Streams) -> Round[AgreedGenes]:
        return state
        yield  # asks nothing more

    def done(self, state: AgreedGenes) -> bool:
        return True

    def estimate(self, state: AgreedGenes) -> Array:
        return state.means

    def metrics(self, state: AgreedGenes) -> dict[str, float]:
        return {}


def match_genes(each: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """The genes that all clients have, in the order of the first; names that differ in their case only are refused."""
    (first, its), *others = each.items()
    for client, names in each.items():
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InputError(
                f"Client {client!r} has {len(twice):,} gene names more than once, such as {twice[0]!r}. Make them "
                "different: adata.var_names_make_unique()."
            )
    common, notes = set(its), []
    folded = {name.casefold(): name for name in its}
    for client, names in others:
        theirs = set(names)
        odd = [n for n in names if n not in common and (o := folded.get(n.casefold())) is not None and o not in theirs]
        if odd:
            raise InputError(
                f"{len(odd):,} genes of client {client!r} are named as those of client {first!r} but for upper and "
                f"lower case, such as {odd[0]!r} and {folded[odd[0].casefold()]!r}. Are they of another species? If "
                "not, write them in one way: adata.var_names = adata.var_names.str.upper()."
            )
        common &= theirs
    if not common:
        raise InputError(
            f"The clients have no gene in common: client {first!r} has genes such as {its[0]!r}, client "
            f"{others[-1][0]!r} such as {others[-1][1][0]!r}. Use the same kind of names (symbols or Ensembl ids)."
        )
    if len(common) < _FEW_GENES * len(its):
        notes.append(f"Only {len(common):,} of the {len(its):,} genes of client {first!r} are at all clients.")
    return [name for name in its if name in common], notes


def pack_names(names: Sequence[str]) -> Array:
    """Names as bytes that a client can send."""
    return np.frombuffer(zlib.compress("\n".join(names).encode(), 6), dtype=np.uint8)


def unpack_names(packed: Array) -> list[str]:
    """The same back; what another client sent is checked before it is believed."""
    try:
        opened = zlib.decompressobj()
        text = opened.decompress(np.asarray(packed, dtype=np.uint8).tobytes(), _MOST_GENE_TEXT).decode()
        if not opened.eof:
            raise ValueError
    except (ValueError, zlib.error):
        raise InputError(
            "A client's list of genes cannot be read. Install the same version of fedspan at every client."
        ) from None
    return text.split("\n")

"""What clients with genotypes agree on before a fit: variants, allele frequencies, filters, pruning.

Everything is asked in the opening (round 0). What the server sees: every client's list of variants (no genotypes);
then two sums over the clients, copies of each variant's counted allele and called genotypes; and for pruning a third,
the products of each variant's genotypes with those of its next neighbours. With secure sums it sees nothing else.

Pruning: a variant is left out if within `window` variants of the same chromosome another one that stays is correlated
with it, r² > `r2`; of two the one with the smaller minor allele goes, as in plink2 --indep-pairwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.field.match_variants import match_variants
from fedspan.algorithms.field.variants import Variant, counts_first, digest_keys, pack_variants, unpack_variants
from fedspan.core.protocol import PUBLIC, Ask, Client, Course, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

DIFFERING, PRUNINGS = ("refuse", "drop"), ("none", "window")


class GenotypeSurvey(Protocol):
    """A client's genotypes, as far as they are looked at before they are rows."""

    def list_variants(self) -> list[Variant]: ...
    def count_alleles(self, keys: Array, first: Array) -> tuple[Array, Array]: ...
    def add_products(self, keys: Array, first: Array, p: Array, window: int) -> Array: ...


class VariantsClient(Client[None]):
    """A client that says of its genotypes only what is asked here."""

    State: ClassVar[type] = type(None)
    needs = "survey"

    def __init__(self, data: GenotypeSurvey) -> None:
        self.survey = data

    def init(self) -> None:
        return None

    @task(releases={"variants": PUBLIC}, shows="which variants its file has, and which allele it counts")
    def list_variants(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Chromosome, position, id and alleles of every variant."""
        return state, {"variants": pack_variants(self.survey.list_variants())}

    @task(
        releases={"alleles": None, "calls": None},
        shows="of each variant, how many copies of an allele its samples have, and in how many it is called",
    )
    def count_alleles(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Copies of the counted allele and called genotypes."""
        alleles, calls = self.survey.count_alleles(arrays["keys"], arrays["first"])
        return state, {"alleles": alleles.astype(np.int64), "calls": calls.astype(np.int64)}

    @task(
        releases={"products": None},
        shows="of each variant, the sums of products of its genotypes with those of its next neighbours",
    )
    def correlate_neighbours(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Σ (g_j - 2p_j)(g_j+l - 2p_j+l) for l = 0 … window."""
        keys, first, p = arrays["keys"], arrays["first"], arrays["p"]
        return state, {"products": self.survey.add_products(keys, first, p, int(arrays["window"]))}


@dataclass(frozen=True)
class AgreedVariants:
    """The variants of a fit: their keys, which allele counts, frequencies and call rates over all clients."""

    variants: Array  # packed
    keys: Array  # (d,)
    first: Array  # (d,)
    p: Array  # (d,)
    called: Array  # (d,) the share of genotypes that are not missing
    samples: int
    notes: tuple[str, ...]

    def list_variants(self) -> list[Variant]:
        """The variants themselves."""
        return unpack_variants(self.variants)


@dataclass(frozen=True)
class AgreeOnVariants(Server[AgreedVariants]):
    """Variants that all clients have, filtered by frequencies and call rates over all of them.

    `maf`: the least frequency of the rarer allele; `missing`: the largest share of missing genotypes.
    """

    maf: float = 0.01
    missing: float = 0.1
    prune: str = "none"
    window: int = 50
    r2: float = 0.2
    differing: str = "refuse"
    autosomes: bool = True

    State: ClassVar[type] = AgreedVariants
    client: ClassVar[type[Client[object]]] = VariantsClient
    family: ClassVar[str] = "columns"

    def asks(self) -> frozenset[str]:
        pruning = {"correlate_neighbours"} if self.prune == "window" else set()
        return frozenset({"list_variants", "count_alleles"} | pruning)

    def course(self) -> Course:
        pruning = (Turn("correlate_neighbours", after=["count_alleles"]),) if self.prune == "window" else ()
        return Course((Turn("list_variants"), Turn("count_alleles", after=["list_variants"]), *pruning))

    def replay(self) -> Replay | str:
        return "the clients' own lists of variants are asked for, not a sum"

    def init(self, rng: Streams) -> Round[AgreedVariants]:
        told = (yield from complete(Ask("list_variants"))).each
        each = {client: unpack_variants(arrays["variants"]) for client, arrays in told.items()}
        matched = match_variants(each, self.differing, self.autosomes)
        variants, notes = list(matched.variants), [f"Left out: {problem}." for problem in matched.problems]
        notes += matched.notes
        keys, first = digest_keys(variants), counts_first(variants)
        asked = {"keys": keys, "first": first.astype(np.uint8)}
        sums = (yield from complete(Ask("count_alleles", asked, Sum("alleles", "calls")))).total
        alleles, calls = sums["alleles"].astype(float), sums["calls"].astype(float)
        samples = int(calls.max(initial=0))  # of the variant that is called most often
        p, called = alleles / np.maximum(2 * calls, 1), calls / max(samples, 1)
        keep = self._filter(p, called, notes)
        if self.prune == "window":
            kept = {"keys": keys[keep], "first": asked["first"][keep], "p": p[keep], "window": np.array(self.window)}
            found = (yield from complete(Ask("correlate_neighbours", kept, Sum("products")))).total["products"]
            chromosomes = np.array([variants[j].chromosome for j in keep])
            stays = prune_window(found, p[keep], chromosomes, self.r2)
            notes.append(f"Pruned by r² > {self.r2:g} within {self.window} variants: {int(stays.sum()):,} stay.")
            keep = keep[stays]
        packed = pack_variants([variants[j] for j in keep])
        return AgreedVariants(packed, keys[keep], first[keep], p[keep], called[keep], samples, tuple(notes))

    def _filter(self, p: Array, called: Array, notes: list[str]) -> Array:
        """The places of the variants that vary, are frequent enough and are called often enough."""
        rarer = np.minimum(p, 1 - p)
        rare = (rarer < self.maf) | (rarer <= 0)
        gaps = called < 1 - self.missing
        keep = np.flatnonzero(~rare & ~gaps)
        if not len(keep):
            raise InputError(
                f"No variant is left: of {len(p):,}, {int(rare.sum()):,} have a minor allele frequency below "
                f"{self.maf:g} over all clients, and {int(gaps.sum()):,} are missing in more than {self.missing:.0%} "
                "of the samples. Lower maf, or raise missing."
            )
        notes.append(
            f"{len(keep):,} variants are used; {int(rare.sum()):,} are rarer than maf = {self.maf:g}, and "
            f"{int(gaps.sum()):,} are missing in more than {self.missing:.0%} of the samples."
        )
        return keep

    def round(self, state: AgreedVariants, rng: Streams) -> Round[AgreedVariants]:
        return state
        yield  # asks nothing more

    def done(self, state: AgreedVariants) -> bool:
        return True

    def estimate(self, state: AgreedVariants) -> Array:
        return state.p

    def metrics(self, state: AgreedVariants) -> dict[str, float]:
        return {}


def prune_window(products: Array, p: Array, chromosomes: Array, r2: float) -> Array:
    """Which variants stay, from Σ a_j a_j+l over all samples, (d, window + 1)."""
    d, width = products.shape
    rarer, stays = np.minimum(p, 1 - p), np.ones(d, dtype=bool)
    own = np.maximum(products[:, 0], 1e-300)
    for j in range(d):
        if not stays[j]:
            continue
        reach = min(width, d - j)
        r = products[j, 1:reach] ** 2 / (own[j] * own[j + 1 : j + reach])
        for other in j + 1 + np.flatnonzero((r > r2) & stays[j + 1 : j + reach]):
            if chromosomes[other] != chromosomes[j]:
                break
            if rarer[other] > rarer[j]:
                stays[j] = False
                break
            stays[other] = False
    return stays

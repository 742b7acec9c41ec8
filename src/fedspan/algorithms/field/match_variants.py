"""Which variants the clients have in common, and what is different about the others: named, never guessed.

Two variants are the same if chromosome, position and both alleles are. If two files count different alleles of them,
genotypes are turned (2 - g), which is exact. It is not if the alleles are A/T or C/G: then the file may as well be on
the other strand, and nobody can tell. Variants on the other strand, with other alleles, or at another position under
the same id are differences that people must resolve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedspan.algorithms.field.variants import Variant, is_autosome
from fedspan.errors import InputError

_COMPLEMENT = str.maketrans("ACGT", "TGCA")
_NO_ID = (".", "0", "")
_KINDS = {
    "strand": "on the other strand (flip them: plink --flip)",
    "ambiguous": "with A/T or C/G counted the other way, which may be the other strand as well",
    "alleles": "with other alleles at the same position",
    "position": "at another position under the same id (another genome build? lift it over)",
    "duplicated": "that occur more than once in the file (plink2 --rm-dup)",
}


@dataclass
class Differences:
    """What is different about the variants of one client, by kind: how many, and the first of them."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        self.examples.setdefault(kind, example)

    def describe(self) -> str:
        """All kinds in one sentence."""
        found = [
            f"{count:,} {_KINDS[kind]}, such as {self.examples[kind]}" for kind, count in sorted(self.counts.items())
        ]
        return "; ".join(found)


@dataclass(frozen=True)
class Matched:
    """The variants that all clients have, in the order of the genome, as the first client counts them."""

    variants: tuple[Variant, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...] = ()  # what is different, by client, and left out


def match_variants(each: Mapping[str, Sequence[Variant]], differing: str, autosomes: bool) -> Matched:
    """Match the variants of all clients. `differing`: "refuse" variants that differ, or "drop" them."""
    (first, its), *others = each.items()
    notes, problems = [], []
    places, repeated = _index(its)
    bad = set(repeated)
    own = Differences()
    for key in repeated:
        own.add("duplicated", places[key].describe())
    found = {first: own} if repeated else {}
    common = set(places)
    ids = {v.id: v for v in its if v.id not in _NO_ID}
    at = {(v.chromosome, v.position): v for v in its}
    for client, theirs in others:
        there, repeated = _index(theirs)
        differences, turned, shared = Differences(), 0, 0
        for key in repeated:
            differences.add("duplicated", there[key].describe())
        bad |= repeated
        for key, variant in there.items():
            same = places.get(key)
            shared += variant.id in ids
            if same is None:
                _count_difference(
                    variant, at.get((variant.chromosome, variant.position)), ids.get(variant.id), differences
                )
            elif same.counted != variant.counted:
                if _is_palindromic(variant):
                    bad.add(key)
                    differences.add("ambiguous", variant.describe())
                else:
                    turned += 1
        if differences.counts["position"] > shared / 2:
            raise InputError(
                f"Client {client!r} seems to use another genome build than client {first!r}: "
                f"{differences.counts['position']:,} of {shared:,} variants with the same id are at other positions, "
                f"such as {differences.examples['position']}. Lift its file over to the same build."
            )
        if differences.counts:
            found[client] = differences
        if turned:
            notes.append(f"Client {client!r} counts the other allele of {turned:,} variants: its genotypes are turned.")
        common &= set(there)
    for client, differences in found.items():
        problems.append(f"client {client!r} has variants {differences.describe()}")
    if problems and differing == "refuse":
        raise InputError(
            f"The clients' variants differ (compared with client {first!r}): {'. '.join(problems)}. Resolve it in the "
            "files, or leave these variants out with differing='drop'."
        )
    kept = [places[key] for key in common - bad if "," not in places[key].counted]
    whole = len(kept)
    if autosomes:
        kept = [variant for variant in kept if is_autosome(variant.chromosome)]
    if not kept:
        raise InputError(
            f"The clients have no {'autosomal ' if autosomes and whole else ''}variant in common. Variants are "
            "compared by chromosome, position and alleles: use the same genome build."
        )
    sizes = ", ".join(f"{client} {len(variants):,}" for client, variants in each.items())
    notes.append(f"All clients have {len(kept):,} variants in common (of {sizes}).")
    return Matched(tuple(sorted(kept, key=_place_of)), tuple(notes), tuple(problems))


def _index(variants: Sequence[Variant]) -> tuple[dict[str, Variant], set[str]]:
    """The variants by their keys, and the keys that occur more than once."""
    places: dict[str, Variant] = {}
    repeated = set()
    for variant in variants:
        if variant.key in places:
            repeated.add(variant.key)
        places[variant.key] = variant
    return places, repeated


def _count_difference(variant: Variant, here: Variant | None, named: Variant | None, found: Differences) -> None:
    """Say what is different about a variant that the first client does not have as it is."""
    if here is not None:
        flipped = {allele.translate(_COMPLEMENT)[::-1] for allele in (variant.counted, variant.other)}
        kind = "strand" if flipped == {here.counted, here.other} else "alleles"
        found.add(kind, f"{variant.describe()}, here {here.counted}/{here.other}")
    elif named is not None:
        found.add("position", f"{variant.describe()}, here {named.chromosome}:{named.position}")


def _is_palindromic(variant: Variant) -> bool:
    """Whether its alleles are the same on both strands."""
    return variant.counted.translate(_COMPLEMENT)[::-1] == variant.other


def _place_of(variant: Variant) -> tuple[int, str, int, str]:
    number = int(variant.chromosome) if variant.chromosome.isdecimal() else 99
    return number, variant.chromosome, variant.position, variant.key

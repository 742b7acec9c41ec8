"""Genotypes at several sites made ready for PCA: variants and frequencies agreed on in the federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.field.agree_variants import DIFFERING, PRUNINGS, AgreedVariants, AgreeOnVariants
from fedspan.algorithms.field.variants import Variant
from fedspan.core.ledger import Ledger, Note
from fedspan.core.protection import RETRIES
from fedspan.core.run import Engine, run
from fedspan.data.clients import blame_client, name_clients
from fedspan.data.genotypes.genotype_files import open_genotypes
from fedspan.data.genotypes.genotype_rows import SCALES, GenotypeRows
from fedspan.data.genotypes.genotype_survey import FileSurvey
from fedspan.data.tables import Table
from fedspan.errors import InputError, suggest
from fedspan.estimators.launch import make_engine
from fedspan.estimators.parameters import is_number, is_whole
from fedspan.secure.masking import Secure

STREAMINGS = ("auto", "yes", "no")
_HELD_GENOTYPES = 1 << 31  # genotypes (bytes) of all clients together that are kept in memory if streaming is "auto"


@dataclass(frozen=True)
class GenotypeOptions:
    """How genotypes are prepared: the keys of [genotypes] in a job file.

    Parameters:
        maf: The least frequency of a variant's rarer allele, over all sites.
        missing: The largest share of missing genotypes of a variant, over all sites.
        prune: "window" leaves out variants that are correlated with a neighbour; "none" keeps them.
        window: How many neighbours on each side are looked at.
        r2: The squared correlation above which one of two neighbours goes.
        scale: "hwe" divides by √(2p(1-p)), as plink2 --pca does; "none" leaves counts as they are.
        differing: What becomes of variants that differ between sites: "refuse" or "drop".
        autosomes: Whether only chromosomes 1 to 22 are used.
        streaming: Whether files are read again for every product, rather than kept in memory: "yes", "no" or "auto".
    """

    maf: float = 0.01
    missing: float = 0.1
    prune: str = "none"
    window: int = 50
    r2: float = 0.2
    scale: str = "hwe"
    differing: str = "refuse"
    autosomes: bool = True
    streaming: str = "auto"

    def __post_init__(self) -> None:
        for name, most in (("maf", 0.5), ("missing", 1.0), ("r2", 1.0)):
            value = {"maf": self.maf, "missing": self.missing, "r2": self.r2}[name]
            if not is_number(value) or not 0 <= value <= most:
                raise InputError(f"{name} must be a number from 0 to {most:g}, but is {value!r}.")
        if not is_whole(self.window) or not 1 <= self.window <= 1000:
            raise InputError(f"window must be an integer from 1 to 1000, but is {self.window!r}.")
        words = {
            "prune": (self.prune, PRUNINGS),
            "scale": (self.scale, SCALES),
            "differing": (self.differing, DIFFERING),
            "streaming": (self.streaming, STREAMINGS),
        }
        for name, (word, known) in words.items():
            if word not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, but is {word!r}. {suggest(word, known)}")

    def to_server(self) -> AgreeOnVariants:
        """What is asked of the clients."""
        return AgreeOnVariants(self.maf, self.missing, self.prune, self.window, self.r2, self.differing, self.autosomes)


class GenotypeSource:
    """One site's genotypes: call it to open its rows."""

    def __init__(self, survey: FileSurvey, agreed: AgreedVariants, names: tuple[str, ...], scale: str, held: bool):
        chosen = replace(survey.find(agreed.keys, agreed.first), p=agreed.p, scale=scale)
        self.samples, self.names = survey.file.samples, names
        self.rows = GenotypeRows(survey.file, chosen, held=held)

    def __call__(self) -> Table:
        return Table(self.rows, self.names, ids=np.array([iid for _, iid in self.samples], dtype=object))


class PreparedGenotypes(Mapping[str, GenotypeSource]):
    """The clients of a fit, by name, and what they agreed on. `ledger` says what that took."""

    def __init__(self, sources: Mapping[str, GenotypeSource], agreed: AgreedVariants, scale: str, ledger: Ledger):
        self._sources, self.agreed, self.scale, self.ledger = dict(sources), agreed, scale, ledger

    def __getitem__(self, name: str) -> GenotypeSource:
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    @cached_property
    def variants(self) -> list[Variant]:
        """The variants that are used, in the order of the model's features."""
        return self.agreed.list_variants()

    @property
    def frequencies(self) -> Array:
        """The frequency of each variant's counted allele over all sites, (d,)."""
        return self.agreed.p

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found out, and what was left out."""
        return self.agreed.notes


def prepare_genotypes(
    clients: Mapping[str, object] | Sequence[object],
    *,
    engine: Engine | Callable[..., Engine] | None = None,
    secure: Secure | None = None,
    ledger: Ledger | None = None,
    retries: int = RETRIES,
    **options: object,
) -> PreparedGenotypes:
    """The clients, ready for `FederatedPCA(center=False).fit`: common variants, standardised with common frequencies.

    Parameters:
        clients: One .bed or .pgen file per client; its sister files are beside it.
        engine: Where the clients run; by default in this process.
        secure: Whether the server sees only sums of allele counts: a `Secure`.
        ledger: Where to write what happens; by default a new one.
        retries: How often a client that did not answer is asked again.
        options: See `GenotypeOptions`: maf, missing, prune, window, r2, scale, differing, autosomes, streaming.

    Returns:
        By client, what opens its rows; with `variants`, `frequencies` and `notes`. The scores of a fitted model are
        those of `write_scores`.
    """
    unknown = [name for name in options if name not in GenotypeOptions.__dataclass_fields__]
    if unknown:
        raise InputError(
            f"{unknown[0]!r} is no option of genotypes. {suggest(unknown[0], GenotypeOptions.__dataclass_fields__)}"
        )
    return agree_on_genotypes(
        clients,
        GenotypeOptions(**options),  # type: ignore[arg-type]
        engine=engine,
        secure=secure,
        ledger=ledger,
        retries=retries,
    )


def agree_on_genotypes(
    clients: Mapping[str, object] | Sequence[object],
    asked: GenotypeOptions,
    *,
    engine: Engine | Callable[..., Engine] | None = None,
    secure: Secure | None = None,
    ledger: Ledger | None = None,
    retries: int = RETRIES,
) -> PreparedGenotypes:
    """The same with options that were read already."""
    surveys = {}
    for name, source in sorted(name_clients(clients).items()):
        with blame_client(name):
            surveys[name] = FileSurvey(open_genotypes(source))
    ledger = ledger if ledger is not None else Ledger()
    made = make_engine(engine, surveys)
    agreed = run(asked.to_server(), made, rounds=0, seed=0, retries=retries, secure=secure, ledger=ledger).state
    for note in agreed.notes:
        ledger.add(Note(note))
    bytes_held = sum(len(survey.file.samples) for survey in surveys.values()) * len(agreed.p)
    held = asked.streaming == "no" or (asked.streaming == "auto" and bytes_held <= _HELD_GENOTYPES)
    names = name_variants(agreed.list_variants())
    sources = {name: GenotypeSource(survey, agreed, names, asked.scale, held) for name, survey in surveys.items()}
    return PreparedGenotypes(sources, agreed, asked.scale, ledger)


def name_variants(variants: Sequence[Variant]) -> tuple[str, ...]:
    """A different name for each: its id, unless some have none or share one."""
    ids = [variant.id for variant in variants]
    if len(set(ids)) == len(ids) and not {".", "0"} & set(ids):
        return tuple(ids)
    return tuple(f"{v.chromosome}:{v.position}:{v.other}:{v.counted}" for v in variants)

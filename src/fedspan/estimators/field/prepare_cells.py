"""Single cells at several sites made ready for PCA: genes agreed on, the most variable ones chosen by sums."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.field.agree_genes import AgreedGenes, AgreeOnGenes
from fedspan.core.ledger import Ledger, Note
from fedspan.core.protection import RETRIES
from fedspan.core.run import Engine, run
from fedspan.data.clients import blame_client, name_clients
from fedspan.data.singlecell.cell_files import CellFile, open_cells
from fedspan.data.singlecell.cell_rows import CellRows, CellsSurvey
from fedspan.data.tables import Table
from fedspan.errors import InputError
from fedspan.estimators._bases.fitted_pca import FittedPCA
from fedspan.estimators.launch import make_engine
from fedspan.estimators.parameters import is_number, is_whole
from fedspan.secure.masking import Secure


class CellSource:
    """One site's cells: call it to open its rows."""

    def __init__(self, file: CellFile, genes: Sequence[str], target_sum: float) -> None:
        self.file, self.names = file, tuple(genes)
        self.rows = CellRows(file, genes, target_sum)

    def __call__(self) -> Table:
        return Table(self.rows, self.names, ids=np.array(self.file.cells, dtype=object))


class PreparedCells(Mapping[str, CellSource]):
    """The clients of a fit, by name, and what they agreed on. `ledger` says what that took."""

    def __init__(self, files: Mapping[str, CellFile], agreed: AgreedGenes, target_sum: float, ledger: Ledger) -> None:
        self.agreed, self.target_sum, self.ledger = agreed, target_sum, ledger
        self._sources = {name: CellSource(file, self.highly_variable, target_sum) for name, file in files.items()}

    def __getitem__(self, name: str) -> CellSource:
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    @cached_property
    def genes(self) -> list[str]:
        """The genes that all sites have."""
        return self.agreed.list_genes()

    @cached_property
    def highly_variable(self) -> list[str]:
        """The genes that are used, in the order of the model's features."""
        return [name for name, chosen in zip(self.genes, self.agreed.chosen, strict=True) if chosen]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found out."""
        return self.agreed.notes


def prepare_cells(
    clients: Mapping[str, object] | Sequence[object],
    *,
    n_top_genes: int = 2000,
    target_sum: float = 1e4,
    layer: str = "X",
    engine: Engine | Callable[..., Engine] | None = None,
    secure: Secure | None = None,
    ledger: Ledger | None = None,
    retries: int = RETRIES,
) -> PreparedCells:
    """The clients, ready for `FederatedPCA.fit`: counts normalised and logarithms taken, the same variable genes.

    Parameters:
        clients: One .h5ad file or .zarr store per client, or {"path": …, "layer": …}.
        n_top_genes: How many of the common genes to use: the most variable over all cells, as scanpy's
            `highly_variable_genes(flavor="seurat")` finds them in pooled cells; 0 uses all.
        target_sum: What the counts of a cell are divided to add up to. It is public: the median of all cells, which
            scanpy takes by default, is not a sum.
        layer: Where the counts are: "X", "raw" or the name of a layer.
        engine: Where the clients run; by default in this process.
        secure: Whether the server sees only sums: a `Secure`.
        ledger: Where to write what happens; by default a new one.
        retries: How often a client that did not answer is asked again.

    Returns:
        By client, what opens its rows; with `genes`, `highly_variable` and `notes`. To count every site alike, as with
        batches, fit with client_weight="equal".
    """
    if not is_whole(n_top_genes) or n_top_genes < 0:
        raise InputError(f"n_top_genes must be an integer, 0 or more, but is {n_top_genes!r}.")
    if not is_number(target_sum) or not 0 < target_sum < np.inf:
        raise InputError(f"target_sum must be a number above 0, but is {target_sum!r}.")
    files = {}
    for name, source in sorted(name_clients(clients).items()):
        with blame_client(name):
            files[name] = open_cells(source, layer)
    ledger = ledger if ledger is not None else Ledger()
    surveys = {name: CellsSurvey(file, target_sum) for name, file in files.items()}
    server = AgreeOnGenes(n_top_genes)
    made = make_engine(engine, surveys)
    agreed = run(server, made, rounds=0, seed=0, retries=retries, secure=secure, ledger=ledger).state
    for note in agreed.notes:
        ledger.add(Note(note))
    return PreparedCells(files, agreed, target_sum, ledger)


def compute_cell_scores(model: FittedPCA, cells: PreparedCells) -> dict[str, Array]:
    """Each site's cells in the components, (n_i, k): scanpy's X_pca."""
    W, mean = np.asarray(model.components_, dtype=np.float32).T, np.asarray(model.mean_, dtype=np.float32)
    if len(W) != len(cells.highly_variable):
        raise InputError(f"The model has {len(W):,} features, but there are {len(cells.highly_variable):,} genes.")
    return {
        name: np.concatenate([(batch - mean) @ W for batch in source.rows.batches()]) for name, source in cells.items()
    }


def write_cells(folder: str | os.PathLike[str], model: FittedPCA, cells: PreparedCells) -> list[Path]:
    """Write a copy of each site's file with the results, where scanpy looks for them.

    obsm["X_pca"] has the cells' coordinates, varm["PCs"] the loadings (zeros for genes that are not used), uns["pca"]
    the variances, and var the columns highly_variable, means, dispersions and dispersions_norm. The site's own file
    stays as it is. Each copy belongs to its site: it holds its cells.
    """
    folder, written = Path(folder), []
    folder.mkdir(parents=True, exist_ok=True)
    scores = compute_cell_scores(model, cells)
    for name, source in cells.items():
        place = folder / f"{name}{source.file.path.suffix}"
        if place.exists():
            raise InputError(f"{place} already exists; choose another folder.")
        draft = folder / f".{name}.part{source.file.path.suffix}"
        try:
            _copy(source.file.path, draft)
            _add_results(CellFile(draft, source.file.layer), model, cells, scores[name])
            draft.rename(place)
        finally:
            if draft.is_dir():
                shutil.rmtree(draft)
            else:
                draft.unlink(missing_ok=True)
        written.append(place)
    return written


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    with target.open("wb") as out:
        target.chmod(0o600)
        with source.open("rb") as file:
            shutil.copyfileobj(file, out, 1 << 24)


def _add_results(copy: CellFile, model: FittedPCA, cells: PreparedCells, scores: Array) -> None:
    from anndata.io import write_elem

    places = {gene: at for at, gene in enumerate(cells.genes)}
    at = np.array([places.get(gene, -1) for gene in copy.genes])
    known, agreed = at >= 0, cells.agreed
    rows = {gene: j for j, gene in enumerate(cells.highly_variable)}
    order = np.array([rows.get(gene, -1) for gene in copy.genes])
    loadings = np.zeros((len(copy.genes), len(model.components_)), dtype=np.float32)
    loadings[order >= 0] = np.asarray(model.components_).T[order[order >= 0]]
    with copy.open("r+") as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = {
            "highly_variable": order >= 0,
            "means": np.where(known, agreed.means[at], np.nan),
            "dispersions": np.where(known, agreed.dispersions[at], np.nan),
            "dispersions_norm": np.where(known, agreed.dispersions_norm[at], np.nan),
        }
        var = root["raw/var" if copy.layer == "raw" else "var"]
        for column, values in columns.items():
            write_elem(var, column, values)
        before = [str(name) for name in var.attrs["column-order"] if name not in columns]
        var.attrs["column-order"] = np.array([*before, *columns], dtype=object) if copy.is_hdf else [*before, *columns]
        for group in ("obsm", "varm", "uns"):
            if group not in root:
                write_elem(root, group, {})
        write_elem(root["obsm"], "X_pca", scores)
        varm = root["raw"].require_group("varm") if copy.layer == "raw" else root["varm"]
        write_elem(varm, "PCs", loadings)
        facts = {
            "variance": np.asarray(model.explained_variance_),
            "variance_ratio": np.asarray(model.explained_variance_ratio_),
            "params": {"zero_center": True, "mask_var": "highly_variable", "target_sum": cells.target_sum},
        }
        write_elem(root["uns"], "pca", facts)

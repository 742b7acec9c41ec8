"""PCA of single cells at several sites against a dense computation on all of them, step by step as scanpy does it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, InputError, Secure, prepare_cells, write_cells
from fedspan.algorithms.field.dispersions import choose_most_variable, find_dispersions
from fedspan.data.singlecell import cell_files
from fedspan.estimators.field.prepare_cells import compute_cell_scores
from fedspan.numerics.orthonormal import largest_angle

anndata = pytest.importorskip("anndata", reason="the extra 'singlecell' is not installed")
GENES = 300
SIZES = {"a": 70, "b": 50, "c": 90}


def draw_counts(n: int, seed: int) -> np.ndarray:
    """Three kinds of cells, depths that vary, genes of many sizes; one gene nowhere, and one cell without counts."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(99)
    base = common.gamma(0.5, 2.0, GENES)
    kinds = base * np.exp(common.normal(size=(3, GENES)) * (common.random(GENES) < 0.3))
    depth = rng.gamma(5, 0.2, n)
    counts = rng.poisson(kinds[rng.integers(0, 3, n)] * depth[:, None]).astype(np.float32)
    counts[:, 7] = 0
    counts[3] = 0
    return counts


@pytest.fixture(scope="module")
def counts() -> dict[str, np.ndarray]:
    return {name: draw_counts(n, seed) for seed, (name, n) in enumerate(SIZES.items())}


def objects(names: Iterable[str]) -> pd.Index:
    """Names as anndata can write them: it does not know the strings of pandas 3 yet."""
    return pd.Index(list(names), dtype=object)


def write(path: Path, C: np.ndarray, genes: list[str] | None = None, **layers: np.ndarray) -> Path:
    names = genes or [f"G{j}" for j in range(C.shape[1])]
    made = anndata.AnnData(
        sp.csr_matrix(C),
        obs=pd.DataFrame({"depth": C.sum(axis=1)}, index=objects(f"{path.stem}-{i}" for i in range(len(C)))),
        var=pd.DataFrame({"length": np.arange(C.shape[1])}, index=objects(names)),
        layers={name: sp.csr_matrix(X) for name, X in layers.items()},
    )
    made.write_zarr(path) if path.suffix == ".zarr" else made.write_h5ad(path)
    return path


@pytest.fixture(scope="module")
def files(counts: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cells")
    return {name: write(folder / f"{name}.h5ad", C) for name, C in counts.items()}


def normalise(C: np.ndarray, target: float = 1e4) -> np.ndarray:
    totals = C.sum(axis=1, keepdims=True).astype(float)
    return C / np.where(totals > 0, totals, 1) * target


def pooled_dispersions(x: np.ndarray) -> pd.DataFrame:
    """As scanpy's _highly_variable_genes_single_batch(flavor="seurat"), with its own pandas calls."""
    mean, var = x.mean(axis=0), x.var(axis=0, ddof=1)
    mean[mean == 0] = 1e-12
    dispersion = var / mean
    dispersion[dispersion == 0] = np.nan
    frame = pd.DataFrame({"means": np.log1p(mean), "dispersions": np.log(dispersion)})
    frame["bin"] = pd.cut(frame["means"], bins=20)
    stats = frame.groupby("bin", observed=True)["dispersions"].agg(avg="mean", dev="std")
    alone = stats["dev"].isnull()
    stats.loc[alone, "dev"] = stats.loc[alone, "avg"]
    stats.loc[alone, "avg"] = 0
    stats = stats.loc[frame["bin"]].set_index(frame.index)
    frame["norm"] = (frame["dispersions"] - stats["avg"]) / stats["dev"]
    return frame


def test_genes_and_components_are_those_of_all_cells_together(files: dict[str, Path], counts, monkeypatch) -> None:
    monkeypatch.setattr(cell_files, "_CHUNK", 32)
    cells = prepare_cells(files, n_top_genes=60)
    C = np.concatenate([counts[name] for name in sorted(counts)])
    expected = pooled_dispersions(normalise(C))
    for mine, theirs in (("means", "means"), ("dispersions", "dispersions"), ("dispersions_norm", "norm")):
        np.testing.assert_allclose(getattr(cells.agreed, mine), expected[theirs], rtol=1e-9, atol=1e-9)
    least = np.sort(expected["norm"].dropna())[-60]
    chosen = expected["norm"].fillna(-np.inf).to_numpy() >= least
    assert cells.highly_variable == [f"G{j}" for j in np.flatnonzero(chosen)]
    A = np.log1p(normalise(C))[:, chosen]
    A -= A.mean(axis=0)
    values, V = np.linalg.eigh(A.T @ A)
    for solver in ("gram", "krylov"):
        model = FederatedPCA(5, solver=solver, random_state=0, tol=1e-6).fit(cells)
        assert largest_angle(model.components_.T.astype(float), V[:, :-6:-1]) < 1e-4
        np.testing.assert_allclose(model.explained_variance_, values[:-6:-1] / (len(A) - 1), rtol=1e-5)
    assert list(model.feature_names_in_) == cells.highly_variable
    scores = np.concatenate(list(compute_cell_scores(model, cells).values()))
    np.testing.assert_allclose(scores, A @ model.components_.T, atol=2e-4)


def test_secure_sums_and_equal_sites(files: dict[str, Path], counts) -> None:
    plain, secure = prepare_cells(files, n_top_genes=60), prepare_cells(files, n_top_genes=60, secure=Secure())
    assert secure.highly_variable == plain.highly_variable
    model = FederatedPCA(3, random_state=0, secure=True).fit(secure)
    again = FederatedPCA(3, random_state=0).fit(plain)
    assert largest_angle(model.components_.T.astype(float), again.components_.T.astype(float)) < 1e-3
    equal = FederatedPCA(3, random_state=0).fit(plain, client_weight="equal")
    at = [int(name[1:]) for name in plain.highly_variable]
    parts = [np.log1p(normalise(counts[name]))[:, at] for name in sorted(counts)]
    mean = np.mean([part.mean(axis=0) for part in parts], axis=0)
    M = sum((part - mean).T @ (part - mean) / len(part) for part in parts)
    assert largest_angle(equal.components_.T.astype(float), np.linalg.eigh(M)[1][:, :-4:-1]) < 1e-3


@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_results_are_where_scanpy_looks_for_them(counts, tmp_path: Path, suffix: str) -> None:
    if suffix == ".zarr":
        pytest.importorskip("zarr")
    files = {name: write(tmp_path / f"{name}{suffix}", C) for name, C in counts.items()}
    cells = prepare_cells(files, n_top_genes=60)
    model = FederatedPCA(4, random_state=0).fit(cells)
    before = files["a"].read_bytes() if suffix == ".h5ad" else None
    written = write_cells(tmp_path / "out", model, cells)
    assert [path.name for path in written] == [f"{name}{suffix}" for name in "abc"]
    read = anndata.read_zarr if suffix == ".zarr" else anndata.read_h5ad
    found = read(written[0])
    np.testing.assert_array_equal(found.obsm["X_pca"], compute_cell_scores(model, cells)["a"])
    used = found.var["highly_variable"].to_numpy()
    assert list(found.var_names[used]) == cells.highly_variable
    np.testing.assert_array_equal(found.varm["PCs"][used], model.components_.T)
    assert not found.varm["PCs"][~used].any()
    np.testing.assert_allclose(found.uns["pca"]["variance"], model.explained_variance_)
    np.testing.assert_array_equal(found.X.toarray(), counts["a"])
    assert list(found.var["length"]) == list(range(GENES))
    assert before is None or files["a"].read_bytes() == before
    with pytest.raises(InputError, match="already exists"):
        write_cells(tmp_path / "out", model, cells)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{name}{suffix}" for name in "abc"]


def test_genes_in_another_order_and_other_genes(files: dict[str, Path], counts, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(GENES)[: GENES - 20]
    genes = [f"G{j}" for j in order]
    odd = {**files, "b": write(tmp_path / "b.h5ad", counts["b"][:, order], genes)}
    cells = prepare_cells(odd, n_top_genes=50)
    assert cells.genes == [f"G{j}" for j in range(GENES) if j in set(order)]
    assert FederatedPCA(2, random_state=0).fit(cells).n_samples_ == sum(SIZES.values())
    few = {**files, "b": write(tmp_path / "few.h5ad", counts["b"][:, :50], [f"G{j}" for j in range(50)])}
    assert any("Only 50 of the 300 genes of client 'a'" in note for note in prepare_cells(few).notes)


def test_counts_may_be_elsewhere(counts, tmp_path: Path) -> None:
    C = counts["a"]
    logs = np.log1p(normalise(C)).astype(np.float32)
    path = write(tmp_path / "a.h5ad", logs, counts=C)
    with pytest.raises(InputError, match=r"X of a.h5ad does not hold counts: .* Look for counts with layer=\"counts\""):
        prepare_cells([path])
    plain = prepare_cells([write(tmp_path / "b.h5ad", C)], n_top_genes=60)
    assert prepare_cells([path], n_top_genes=60, layer="counts").highly_variable == plain.highly_variable
    assert prepare_cells([{"path": path, "layer": "counts"}], n_top_genes=60).highly_variable == plain.highly_variable
    made = anndata.read_h5ad(path)
    made.raw = anndata.AnnData(sp.csr_matrix(C), var=pd.DataFrame(index=objects(made.var_names)))
    made.obs_names, made.var_names = objects(made.obs_names), objects(made.var_names)
    made.write_h5ad(tmp_path / "raw.h5ad")
    assert prepare_cells([tmp_path / "raw.h5ad"], n_top_genes=60, layer="raw").highly_variable == plain.highly_variable
    with pytest.raises(InputError, match=r"has no counts in 'layers/spliced'. It holds X, layers/counts"):
        prepare_cells([path], layer="spliced")
    nowhere = write(tmp_path / "c.h5ad", logs)
    with pytest.raises(InputError, match="Use the file before it was normalised"):
        prepare_cells([nowhere])


def test_files_that_cannot_be_clients(files: dict[str, Path], counts, tmp_path: Path) -> None:
    C = counts["b"]
    upper = {**files, "b": write(tmp_path / "b.h5ad", C, [f"g{j}" for j in range(GENES)])}
    with pytest.raises(InputError, match="300 genes of client 'b' are named as those of client 'a' but for upper and"):
        prepare_cells(upper)
    other = {**files, "b": write(tmp_path / "e.h5ad", C, [f"ENSG{j}" for j in range(GENES)])}
    with pytest.raises(InputError, match="no gene in common: client 'a' has genes such as 'G0', client 'b' such"):
        prepare_cells({"a": other["a"], "b": other["b"]})
    twice = write(tmp_path / "t.h5ad", C, ["G1", *[f"G{j}" for j in range(1, GENES)]])
    with pytest.raises(InputError, match="Client '0' has 1 gene names more than once, such as 'G1'"):
        prepare_cells([twice])
    made = anndata.AnnData(sp.csc_matrix(C), var=pd.DataFrame(index=objects(f"G{j}" for j in range(GENES))))
    made.obs_names = objects(map(str, range(len(C))))
    made.write_h5ad(tmp_path / "csc.h5ad")
    with pytest.raises(InputError, match=r"stored by genes \(CSC\)"):
        prepare_cells([tmp_path / "csc.h5ad"])
    cut = tmp_path / "cut.h5ad"
    whole = files["a"].read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"client '0': .*cut.h5ad is not a whole h5ad file"):
        prepare_cells([cut])
    with pytest.raises(InputError, match=r"nothing.h5ad does not exist"):
        prepare_cells([tmp_path / "nothing.h5ad"])
    with pytest.raises(InputError, match=r"read from .h5ad and .zarr files"):
        prepare_cells([tmp_path / "a.loom"])
    with pytest.raises(InputError, match="n_top_genes must be an integer"):
        prepare_cells(files, n_top_genes=-1)
    with pytest.raises(InputError, match="target_sum must be a number above 0"):
        prepare_cells(files, target_sum=0)


def test_bins_with_one_gene_and_genes_without_counts() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.poisson(1.0, (50, 6)), np.zeros((50, 1)), rng.poisson(500.0, (50, 1))], axis=1)
    expected = pooled_dispersions(x.astype(float))["norm"]
    found = find_dispersions(50, x.sum(axis=0), (x**2).sum(axis=0)).dispersions_norm
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[7] == pytest.approx(1.0)
    assert np.isnan(found[6])
    assert choose_most_variable(found, 100).sum() == 7
    assert not choose_most_variable(np.full(3, np.nan), 2).any()

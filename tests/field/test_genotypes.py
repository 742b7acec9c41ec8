"""PCA of genotypes at several sites against a dense computation on all of them, and against plink2 where it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from genotype_world import (
    Site,
    draw_sites,
    pooled_frequencies,
    read_eigenvec,
    standardise,
    write_bed,
    write_pgen,
    write_sites,
)

from fedspan import FederatedPCA, InputError, Ledger, Secure, prepare_genotypes, read_loadings, write_loadings
from fedspan.core.ledger import Note
from fedspan.data.genotypes import genotype_rows
from fedspan.data.genotypes.genotype_files import open_genotypes
from fedspan.data.genotypes.genotype_rows import ChosenVariants, GenotypeRows, multiply_neighbours
from fedspan.estimators.field.genotype_results import compute_scores, write_scores
from fedspan.numerics.operators import Rows, WeightedRows
from fedspan.numerics.orthonormal import largest_angle

pytest.importorskip("bed_reader", reason="the extra 'genomics' is not installed")


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    return draw_sites()


@pytest.fixture(scope="module")
def files(sites: list[Site], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sites(tmp_path_factory.mktemp("genotypes"), sites)


def leading(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(A.T @ A)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


@pytest.mark.parametrize("streaming", ["yes", "no"])
@pytest.mark.parametrize("solver", ["gram", "krylov"])
def test_components_are_those_of_all_samples_together(
    sites: list[Site], files: dict[str, Path], streaming: str, solver: str
) -> None:
    genotypes = prepare_genotypes(files, maf=0.0, streaming=streaming)
    p, called = pooled_frequencies(sites)
    np.testing.assert_allclose(genotypes.frequencies, p, atol=1e-12)
    np.testing.assert_allclose(genotypes.agreed.called, called / called.max(), atol=1e-12)
    model = FederatedPCA(4, center=False, solver=solver, tol=1e-7, random_state=0).fit(genotypes)
    values, V = leading(standardise(sites), 4)
    assert largest_angle(model.components_.T, V) < 1e-4
    np.testing.assert_allclose(model.singular_values_**2, values, rtol=1e-5)
    scores = np.concatenate(list(compute_scores(model, genotypes).values()))
    np.testing.assert_allclose(scores.T @ scores, np.eye(4), atol=1e-5)


def test_products_without_forming_the_rows(
    sites: list[Site], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles, slabs and batches of sizes that divide nothing; weights and bounds, which take the batches."""
    monkeypatch.setattr(genotype_rows, "_TILE", 32 * 7)
    monkeypatch.setattr(genotype_rows, "_ROWS", 7)
    monkeypatch.setattr(genotype_rows, "_SLAB", 40 * 50)
    monkeypatch.setattr(genotype_rows, "_BATCH", 120 * 9)
    rng = np.random.default_rng(0)
    p, _ = pooled_frequencies(sites)
    V, mu, s = rng.normal(size=(120, 3)), rng.normal(size=120), rng.uniform(0.5, 2, 120)
    A = standardise(sites)[:40]
    for held in (False, True):
        kernel = GenotypeRows(
            open_genotypes(files["a"]), ChosenVariants(np.arange(120), np.zeros(120, bool), p), held=held
        )
        for _ in range(2):  # the second time from memory, if held
            rows, B = Rows(kernel), (A - mu) / s
            np.testing.assert_allclose(rows.multiply(V, mu, s), B.T @ (B @ V), rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(rows.multiply(V, None, None), A.T @ (A @ V), rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(rows.squares(mu), ((A - mu) ** 2).sum(axis=0), rtol=1e-5)
            np.testing.assert_allclose(rows.sums(), A.sum(axis=0), atol=1e-4)
            np.testing.assert_allclose(rows.gram(mu, s), B.T @ B, rtol=1e-4, atol=1e-3)
        weights = rng.uniform(0, 2, 40)
        weighted = Rows(WeightedRows(kernel, weights))
        np.testing.assert_allclose(
            weighted.multiply(V, None, None), A.T @ (weights[:, None] * (A @ V)), rtol=1e-4, atol=1e-3
        )
        bounded = Rows(kernel, row_norm=3.0)
        short = A * np.minimum(1, 3 / np.linalg.norm(A, axis=1))[:, None]
        np.testing.assert_allclose(bounded.multiply(V, None, None), short.T @ (short @ V), rtol=1e-4, atol=1e-3)


def test_bits_and_secure_sums_give_the_same(sites: list[Site], files: dict[str, Path]) -> None:
    genotypes = prepare_genotypes(files, maf=0.0, secure=Secure())
    plain = prepare_genotypes(files, maf=0.0)
    np.testing.assert_array_equal(genotypes.frequencies, plain.frequencies)
    _, V = leading(standardise(sites), 3)
    for options in ({"bits": "auto"}, {"secure": True}, {"secure": True, "bits": "auto"}):
        model = FederatedPCA(3, center=False, solver="krylov", tol=1e-6, random_state=0, **options).fit(genotypes)
        assert largest_angle(model.components_.T, V) < 1e-3, options


def test_pgen_is_read_as_bed_is(sites: list[Site], files: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("pgenlib")
    a, b = open_genotypes(files["a"]), open_genotypes(write_pgen(tmp_path / "a.pgen", sites[0]))
    at = np.array([5, 0, 119, 7])
    np.testing.assert_array_equal(a.read(at), sites[0].G.T[at])
    np.testing.assert_array_equal(b.read(at), a.read(at))
    assert a.variants == b.variants
    assert [iid for _, iid in a.samples] == [iid for _, iid in b.samples]
    mixed = prepare_genotypes({**files, "a": tmp_path / "a.pgen"}, maf=0.0)
    np.testing.assert_array_equal(mixed.frequencies, prepare_genotypes(files, maf=0.0).frequencies)


def test_filters_hold_over_all_sites(sites: list[Site], files: dict[str, Path]) -> None:
    genotypes = prepare_genotypes(files, maf=0.2, missing=0.02)
    p, called = pooled_frequencies(sites)
    keep = (np.minimum(p, 1 - p) >= 0.2) & (called / called.max() >= 0.98)
    assert 0 < keep.sum() < 120
    assert [variant.id for variant in genotypes.variants] == [f"rs{j}" for j in np.flatnonzero(keep)]
    with pytest.raises(InputError, match=r"No variant is left: of 120, 120 have a minor allele frequency below 0.5"):
        prepare_genotypes(files, maf=0.5)


def test_pruning_is_that_of_pooled_correlations(tmp_path: Path) -> None:
    sites = draw_sites(d=60, missing=0.0)
    copied = [
        site.take([j // 2 for j in range(60)])._replace(ids=[f"rs{j}" for j in range(60)], positions=list(range(60)))
        for site in sites
    ]
    copied = [site._replace(chromosomes=["1"] * 31 + ["2"] * 29) for site in copied]  # pair 30, 31 is cut by a border
    genotypes = prepare_genotypes(write_sites(tmp_path, copied), maf=0.0, prune="window", window=3, r2=0.9)
    expected = [f"rs{j}" for j in range(60) if j % 2 == 0 or j == 31]
    assert [variant.id for variant in genotypes.variants] == expected
    assert "Pruned by r² > 0.9 within 3 variants: 31 stay." in genotypes.notes


def test_products_with_neighbours_are_exact_across_slabs(
    sites: list[Site], files: dict[str, Path], monkeypatch
) -> None:
    p, _ = pooled_frequencies(sites)
    A = np.where(sites[0].G < 0, 0.0, sites[0].G - 2 * p)
    M = A.T @ A
    for slab in (7, 50, 120):
        monkeypatch.setattr(genotype_rows, "_SLAB", slab * 40)
        chosen = ChosenVariants(np.arange(120), np.zeros(120, bool), p)
        found = multiply_neighbours(open_genotypes(files["a"]), chosen, 11)
        for j in range(120):
            reach = min(12, 120 - j)
            np.testing.assert_allclose(found[j, :reach], M[j, j : j + reach], rtol=1e-4, atol=1e-3)
            assert not found[j, reach:].any()


def test_a_file_that_counts_other_alleles_is_turned_and_named(
    sites: list[Site], files: dict[str, Path], tmp_path: Path
) -> None:
    order = np.random.default_rng(1).permutation(120)
    other = write_bed(tmp_path / "b.bed", sites[1].swap([3, 10, 50]).take(order))
    ledger = Ledger()
    genotypes = prepare_genotypes({**files, "b": other}, maf=0.0, ledger=ledger)
    np.testing.assert_array_equal(genotypes.frequencies, prepare_genotypes(files, maf=0.0).frequencies)
    said = [event.text for event in ledger.events if isinstance(event, Note)]
    assert "Client 'b' counts the other allele of 3 variants: its genotypes are turned." in said


def change(site: Site, **columns: dict[int, object]) -> Site:
    new = {
        name: [wanted.get(j, value) for j, value in enumerate(getattr(site, name))] for name, wanted in columns.items()
    }
    return site._replace(**new)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            lambda s: change(s, a1={0: "T"}, a2={0: "G"}),
            r"1 on the other strand .*, such as rs0 \(1:100 T/G\), here A/C",
        ),
        (lambda s: change(s, a1={0: "A"}, a2={0: "G"}), r"1 with other alleles at the same position, such as rs0"),
        (
            lambda s: change(s, positions={5: 151}),
            r"1 at another position under the same id .*rs5 \(1:151 G/T\), here 1:150",
        ),
        (
            lambda s: s.take([*range(120), 4]),
            r"1 that occur more than once in the file \(plink2 --rm-dup\), such as rs4",
        ),
    ],
)
def test_variants_that_differ_are_named(
    sites: list[Site], files: dict[str, Path], tmp_path: Path, made, says: str
) -> None:
    odd = {**files, "b": write_bed(tmp_path / "b.bed", made(sites[1]))}
    with pytest.raises(InputError, match=rf"client 'b' has variants {says}"):
        prepare_genotypes(odd)
    kept = prepare_genotypes(odd, differing="drop", maf=0.0)
    assert len(kept.variants) == 119
    assert any("Left out: client 'b' has variants 1 " in note for note in kept.notes)


def test_an_ambiguous_swap_is_not_guessed(tmp_path: Path) -> None:
    sites = [change(site, a1={7: "A"}, a2={7: "T"}) for site in draw_sites()]
    files = write_sites(tmp_path, [sites[0], sites[1].swap([7]), sites[2]])
    with pytest.raises(InputError, match=r"A/T or C/G counted the other way, .* such as rs7"):
        prepare_genotypes(files)
    assert "rs7" not in [variant.id for variant in prepare_genotypes(files, differing="drop", maf=0.0).variants]


def test_another_genome_build_is_refused_whatever_is_allowed(
    sites: list[Site], files: dict[str, Path], tmp_path: Path
) -> None:
    lifted = sites[1]._replace(positions=[position + 7 for position in sites[1].positions])
    odd = {**files, "b": write_bed(tmp_path / "b.bed", lifted)}
    with pytest.raises(InputError, match="Client 'b' seems to use another genome build than client 'a': 120 of 120"):
        prepare_genotypes(odd, differing="drop")
    nameless = lifted._replace(ids=["."] * 120)
    odd = {**files, "b": write_bed(tmp_path / "c.bed", nameless)}
    with pytest.raises(InputError, match="The clients have no variant in common"):
        prepare_genotypes(odd)


def test_sex_chromosomes_are_left_out(sites: list[Site], tmp_path: Path) -> None:
    named = [site._replace(chromosomes=["chr1"] * 60 + ["23"] * 30 + ["chrX"] * 30) for site in sites]
    files = write_sites(tmp_path, named)
    assert len(prepare_genotypes(files, maf=0.0).variants) == 60
    assert len(prepare_genotypes(files, maf=0.0, autosomes=False).variants) == 120


def test_damaged_files(sites: list[Site], tmp_path: Path) -> None:
    good = write_bed(tmp_path / "a.bed", sites[0])
    whole = good.read_bytes()
    good.write_bytes(whole[:-500])
    with pytest.raises(InputError, match=r"must have 1,203 bytes .* but has 703. It was cut off; copy it again"):
        open_genotypes(good)
    good.write_bytes(whole + b"0")
    with pytest.raises(InputError, match="Do the three files belong together"):
        open_genotypes(good)
    good.write_bytes(whole[:2] + b"\0" + whole[3:])
    with pytest.raises(InputError, match=r"sample-major.*plink2 --bfile a --make-bed"):
        open_genotypes(good)
    good.write_bytes(b"PK" + whole[2:])
    with pytest.raises(InputError, match=r"not a PLINK .bed file"):
        open_genotypes(good)
    good.write_bytes(whole)
    bim = good.with_suffix(".bim")
    text = bim.read_text()
    bim.write_text(text.replace("\t100\t", "\there\t", 1))
    with pytest.raises(InputError, match=r"Line 1 of .*a.bim must have a position in base pairs, but has 'here'"):
        open_genotypes(good)
    bim.unlink()
    with pytest.raises(InputError, match=r"a.bed needs a.bim beside it, but that is missing"):
        open_genotypes(good)
    with pytest.raises(InputError, match=r"client '0': Genotypes are read from .bed and .pgen files"):
        prepare_genotypes([tmp_path / "a.vcf"])
    with pytest.raises(InputError, match="'mav' is no option of genotypes"):
        prepare_genotypes([good], mav=0.1)


def test_a_file_must_not_change_in_a_run(sites: list[Site], tmp_path: Path) -> None:
    path = write_bed(tmp_path / "a.bed", sites[0])
    file = open_genotypes(path)
    data = bytearray(path.read_bytes())
    data[40] ^= 3
    path.write_bytes(bytes(data) + b"\0")
    with pytest.raises(InputError, match="changed while it was read"):
        file.read(np.arange(120))


def test_loadings_project_new_samples(sites: list[Site], files: dict[str, Path], tmp_path: Path) -> None:
    genotypes = prepare_genotypes(files, maf=0.0)
    model = FederatedPCA(3, center=False, random_state=0).fit(genotypes)
    write_loadings(tmp_path / "pca.eigenvec.allele", model, genotypes)
    loadings = read_loadings(tmp_path / "pca.eigenvec.allele")
    assert loadings.variants == genotypes.variants
    shuffled = write_bed(tmp_path / "new.bed", sites[1].swap([2, 9]).take(list(range(119, -1, -1))))
    np.testing.assert_allclose(loadings.project(shuffled), compute_scores(model, genotypes)["b"], atol=1e-5)
    written = write_scores(tmp_path / "scores", model, genotypes)
    people, scores = read_eigenvec(written[1])
    assert people == [f"b{i}" for i in range(30)]
    np.testing.assert_allclose(scores, loadings.project(shuffled), atol=1e-5)
    lacking = write_bed(tmp_path / "less.bed", sites[1].take(list(range(100))))
    with pytest.raises(InputError, match=r"lacks 20 of the 120 variants of the loadings, such as rs100"):
        loadings.project(lacking)
    (tmp_path / "bad").write_text("#CHROM\tPOS\n1\t2\n")
    with pytest.raises(InputError, match="does not hold loadings"):
        read_loadings(tmp_path / "bad")


@pytest.mark.skipif(shutil.which("plink2") is None, reason="plink2 is not installed")
def test_scores_are_those_of_plink2(tmp_path: Path) -> None:
    """Without missing genotypes: there plink2 divides by how many variants two samples have both."""
    sites = draw_sites((60, 40, 50), d=400, seed=3, missing=0.0)
    pooled = Site(np.concatenate([site.G for site in sites]), *sites[0][1:])
    write_bed(tmp_path / "all.bed", pooled)
    command = ["plink2", "--bfile", "all", "--pca", "3", "--threads", "1", "--out", "p2"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    _, expected = read_eigenvec(tmp_path / "p2.eigenvec")
    genotypes = prepare_genotypes(write_sites(tmp_path, sites), maf=0.0, missing=1.0)
    model = FederatedPCA(3, center=False, tol=1e-7, random_state=0).fit(genotypes)
    ours = np.concatenate(list(compute_scores(model, genotypes).values()))
    assert largest_angle(np.linalg.qr(ours)[0], np.linalg.qr(expected)[0]) < 1e-4  # plink2 prints six digits
    values = np.loadtxt(tmp_path / "p2.eigenval")
    write_scores(tmp_path, model, genotypes)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "model.eigenval"), values, rtol=0.02)

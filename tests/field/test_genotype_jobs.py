"""Genotypes in job files: what `fedspan new --kind genotypes` writes runs, is resumed, or refused where it must be."""

from __future__ import annotations

import stat
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from genotype_world import draw_sites, read_eigenvec, standardise, write_bed, write_sites
from typer.testing import CliRunner

from fedspan import InputError, Job, check, read_loadings
from fedspan.cli.main import app
from fedspan.jobs import resume
from fedspan.jobs.template import text_for
from fedspan.numerics.orthonormal import largest_angle

pytest.importorskip("bed_reader", reason="the extra 'genomics' is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sites(tmp_path, draw_sites())
    return tmp_path


def write_job(folder: Path, text: str = "", job: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(
        f'[job]\ntask = "pca"\nn_components = 3\nrandom_state = 0\n{job}\n'
        f'[data]\nkind = "genotypes"\nclients = ["a.bed", "b.bed", "c.bed"]\n{text}'
    )
    return path


def test_the_written_job_runs_and_leaves_the_files_of_plink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert CliRunner().invoke(app, ["new", "pca", "--kind", "genotypes"]).exit_code == 0
    text = (folder / "pca.toml").read_text().replace('"b.pgen"', '"b.bed", "c.bed"')
    (folder / "pca.toml").write_text(
        text.replace("# maf = 0.01", "maf = 0.0").replace("n_components = 2", "n_components = 3")
    )
    done = CliRunner().invoke(
        app, ["run", "pca.toml", "--set", "job.random_state=0", "--set", "job.tol=1e-7", "--out", "out"]
    )
    assert done.exit_code == 0, done.output
    loadings = read_loadings(folder / "out/genotypes/model.eigenvec.allele")
    V = np.linalg.eigh(standardise(draw_sites()).T @ standardise(draw_sites()))[1][:, ::-1][
        :, : loadings.weights.shape[1]
    ]
    assert largest_angle(loadings.weights, V) < 1e-4
    people, scores = read_eigenvec(folder / "out/genotypes/b.eigenvec")
    assert people == [f"b{i}" for i in range(30)]
    np.testing.assert_allclose(scores, loadings.project(folder / "b.bed"), atol=1e-5)
    assert stat.S_IMODE((folder / "out/genotypes/b.eigenvec").stat().st_mode) == 0o600
    assert "variants in common" in (folder / "out/report.html").read_text()


def test_new_samples_are_projected_from_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Job.load(write_job(folder, "[genotypes]\nmaf = 0.0\n")).run("out")
    new = draw_sites((12,), seed=9)[0]
    write_bed(folder / "new.bed", new.swap([3]))
    done = CliRunner().invoke(app, ["project", "out", "new.bed"])
    assert done.exit_code == 0, done.output
    people, scores = read_eigenvec(folder / "new.eigenvec")
    assert people == [f"new{i}" for i in range(12)]
    expected = read_loadings(folder / "out/genotypes/model.eigenvec.allele").project(folder / "new.bed")
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    again = CliRunner().invoke(app, ["project", "out", "new.bed"])
    assert again.exit_code == 2
    assert "new.eigenvec already exists" in again.output


def test_a_run_is_resumed_to_the_bit_and_written_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.load(
        write_job(folder, '[genotypes]\nmaf = 0.05\nstreaming = "yes"\n[secure]\nenabled = true\n', 'solver = "krylov"')
    )
    whole = job.run(folder / "whole")
    assert Job.load(folder / "whole/job.toml").genotypes == job.genotypes
    seen = 0

    class StopError(Exception):
        pass

    class Stops:
        shows_notice = True

        def say(self, text: str) -> None: ...

        def warn(self, text: str) -> None: ...

        def follow(self, outlook: object) -> object:
            def after(info: object) -> None:
                nonlocal seen
                seen += 1
                if seen == 2:
                    raise StopError

            return nullcontext(after)

    with pytest.raises(StopError):
        job.run(folder / "cut", Stops())
    done = resume(folder / "cut")
    np.testing.assert_array_equal(done.model.components_, whole.model.components_)
    first = (folder / "whole/genotypes/a.eigenvec").read_bytes()
    assert (folder / "cut/genotypes/a.eigenvec").read_bytes() == first


def test_check_says_all_that_is_different(folder: Path) -> None:
    site = draw_sites()[1]
    moved = site._replace(a1=["T", *site.a1[1:]], a2=["G", *site.a2[1:]])
    write_bed(folder / "b.bed", moved.take([*range(120), 4]))
    found = check(Job.load(write_job(folder)))
    said = " ".join(finding.text for finding in found.findings)
    assert "on the other strand" in said
    assert "occur more than once in the file" in said
    assert not found.ok
    (folder / "c.bed").write_bytes((folder / "c.bed").read_bytes()[:-50])
    said = " ".join(finding.text for finding in check(Job.load(write_job(folder))).findings)
    assert "cut off" in said
    write_sites(folder, draw_sites())
    fine = check(Job.load(write_job(folder)))
    assert fine.ok
    assert "120 variants in common" in str(fine)


@pytest.mark.parametrize(
    ("text", "job", "says"),
    [
        ('id = "x"', "", "data.id is for tables, but the clients have genotypes"),
        ("[genotypes]\nmav = 0.1", "", r"\[genotypes\] has no key 'mav'. Did you mean 'maf'"),
        ("[genotypes]\nmaf = 0.9", "", r"\[genotypes\]: maf must be a number from 0 to 0.5, but is 0.9"),
        ('[genotypes]\nprune = "all"', "", r"\[genotypes\]: prune must be one of none, window, but is 'all'"),
        ("[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrow_norm = 1.0", "", r"cannot be combined with \[privacy\]"),
        ("", "scale = true", "leave job.scale out"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, text: str, job: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Job.load(write_job(folder, text, job))


def test_tables_and_other_tasks_have_no_genotypes(folder: Path) -> None:
    path = write_job(folder, "[genotypes]\nmaf = 0.1")
    path.write_text(path.read_text().replace('kind = "genotypes"\n', ""))
    with pytest.raises(InputError, match=r"\[genotypes\] needs data.kind"):
        Job.load(path)
    path = write_job(folder)
    path.write_text(path.read_text().replace('"pca"', '"personalized"'))
    with pytest.raises(InputError, match="is for tasks pca and svd"):
        Job.load(path)
    path = write_job(folder)
    path.write_text(path.read_text().replace('kind = "genotypes"', 'kind = "genes"'))
    with pytest.raises(InputError, match="Did you mean 'genotypes'"):
        Job.load(path)
    done = CliRunner().invoke(app, ["new", "gcca", str(folder / "x.toml"), "--kind", "genotypes"])
    assert done.exit_code == 2
    assert "center" not in text_for("pca", "x", "genotypes").split("[data]")[0]

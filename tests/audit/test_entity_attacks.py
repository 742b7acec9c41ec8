"""The audit of vertical runs: each attack succeeds where its defence is off, and fails where it is on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from fedspan import Job, audit


def write_views(folder: Path, share_missing: float = 0.0) -> None:
    rng = np.random.default_rng(0)
    kind = np.repeat(np.arange(4), 60)
    X = rng.normal(size=(4, 12))[kind] * 3 + rng.normal(size=(240, 12))
    for name, at in {"bank": slice(0, 4), "shop": slice(4, 8), "lab": slice(8, 12)}.items():
        part = np.where(rng.random((240, 1)) < share_missing, np.nan, X[:, at])
        frame = pd.DataFrame(part, columns=[f"{name}{j}" for j in range(4)]).assign(who=range(240))
        if name == "bank":
            frame = frame.assign(kind=kind)
        frame.to_csv(folder / f"{name}.csv", index=False)


def find_notes(folder: Path, name: str, keys: str, data: str = "") -> str:
    (folder / f"{name}.toml").write_text(
        f'[job]\n{keys}\nrandom_state = 0\n[data]\nviews = ["bank.csv", "shop.csv", "lab.csv"]\nid = "who"\n'
        f'label = "kind"\n{data}\n[run]\ntranscript = true\n'
    )
    done = Job.load(folder / f"{name}.toml").run(folder / name)
    return "\n".join(audit(done.folder.path).notes)


def first_share(pattern: str, notes: str) -> float:
    found = re.search(pattern + r"[^%]*?([\d.]+)%", notes)
    assert found is not None, notes
    return float(found.group(1))


def test_scores_tell_labels_and_hidden_ones_do_not(tmp_path: Path) -> None:
    write_views(tmp_path)
    shown = find_notes(tmp_path, "shown", 'task = "vertical-pca"\nn_components = 3')
    hidden = find_notes(tmp_path, "hidden", 'task = "vertical-pca"\nn_components = 3\nhide_scores = true')
    label = r"An entity's label.*right for "
    assert first_share(label, shown) > 90
    assert first_share(label, hidden) < 45  # a quarter by chance
    neighbours = r"Whom an entity is like.*columns, "
    assert first_share(neighbours, shown) > 3 * first_share(neighbours, hidden)


def test_single_answers_span_the_columns_and_secure_sums_hide_them(tmp_path: Path) -> None:
    write_views(tmp_path)
    keys = 'task = "gcca"\nn_components = 2'
    plain = find_notes(tmp_path, "plain", keys)
    assert first_share(r"Which columns a client has: of the variance of the columns of '\w+', ", plain) > 99
    secure = find_notes(tmp_path, "secure", keys, "[secure]\nenabled = true")
    assert "Which columns a client has" not in secure
    assert "looks like random bytes" in secure


def test_masks_are_known_of_single_views_unless_sums_are_secure(tmp_path: Path) -> None:
    write_views(tmp_path, share_missing=0.3)
    keys = 'task = "gcca"\nn_components = 2'
    plain = find_notes(tmp_path, "plain", keys, 'missing = "mask"')
    assert "told the server which entities it has, so it knows all" in plain
    secure = find_notes(tmp_path, "secure", keys, 'missing = "mask"\n[secure]\nenabled = true')
    known = first_share("Who is missing where.*For ", secure)
    assert 25 < known < 50  # .7³ + .3³ of them are in all views or in none


def write_rows(folder: Path) -> None:
    """Two tables of 8 columns in all; the second one in another order."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 8)) * rng.uniform(1, 5, size=8) + 10
    ids = [f"p{j}" for j in range(80)]
    bank = pd.DataFrame(X[:, :5], columns=[f"b{j}" for j in range(5)]).assign(who=ids)
    bank.assign(kind=np.where(X[:, 0] > 10, "ill", "well")).to_csv(folder / "bank.csv", index=False)
    shop = pd.DataFrame(X[:, 5:], columns=[f"s{j}" for j in range(3)]).assign(who=ids)
    shop.sample(frac=1, random_state=0).to_csv(folder / "shop.csv", index=False)


def learn_rows(folder: Path, name: str, rounds: int, hidden: int, more: str = "") -> float:
    (folder / f"{name}.toml").write_text(
        f'[job]\ntask = "vertical-classifier"\nmethod = "sgd"\nhidden = {hidden}\nrounds = {rounds}\n'
        "batch_size = 20\nrandom_state = 0\n[data]\nviews = { bank = 'bank.csv', shop = 'shop.csv' }\n"
        f'id = "who"\nlabel = "kind"\nmatch = "digest"\n{more}\n[run]\ntranscript = true\n'
    )
    done = Job.load(folder / f"{name}.toml").run(folder / name)
    return first_share("Features of rows.*they explain ", "\n".join(audit(done.folder.path).notes))


def test_rows_are_solved_for_from_embeddings_also_if_sums_are_secure(tmp_path: Path) -> None:
    """A row that is drawn often enough gives more equations than it has features: the server then knows it."""
    write_rows(tmp_path)
    assert learn_rows(tmp_path, "plain", rounds=40, hidden=4) > 95
    assert learn_rows(tmp_path, "secure", rounds=40, hidden=4, more="[secure]\nenabled = true") > 95
    # the defence: fewer sums of a row than it has features
    assert learn_rows(tmp_path, "few", rounds=4, hidden=1) < 50

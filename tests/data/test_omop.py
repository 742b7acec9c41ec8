"""The OMOP recipe of the docs: its SQL, as it stands on the page, on SQLite and PostgreSQL against pandas."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedPCA, prepare
from fedspan.data.tables import open_table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "omop.md").read_text(encoding="utf-8")
QUERY = re.search(r'QUERY = """\n(.*?)"""', PAGE, re.DOTALL)[1]
TABLES = re.search(r'TABLES = """\n(.*?)"""', PAGE, re.DOTALL)[1]
Frames = dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def frames() -> Frames:
    """A clinic in which everything happens: several periods, values on one day, other units, the future, no value."""
    rng = np.random.default_rng(0)
    ids = np.arange(1, 201)
    person = pd.DataFrame(
        {
            "person_id": ids,
            "year_of_birth": rng.integers(1930, 2002, 200),
            "gender_concept_id": rng.choice([8507, 8532], 200),
        }
    )
    periods = [(p, "2018-01-01", "2021-01-01") for p in ids[:150]] + [(p, "2015-01-01", "2022-01-01") for p in ids[:60]]
    periods += [(p, "2019-06-01", "2021-01-01") for p in ids[150:]]  # these were not observed for a year
    days = [f"{year}-0{month}-1{day}" for year in (2017, 2019, 2020) for month in (3, 8) for day in (0, 5)]
    conditions = [
        (p, int(rng.choice([201826, 4193704, 320128, 999])), str(rng.choice(days))) for p in rng.choice(ids, 300)
    ]
    measured = []
    for number, p in enumerate(rng.choice(ids, 900)):
        concept, unit = ((3004249, 8876), (3038553, 9531), (3004249, 44777590))[rng.integers(3)]
        value = None if rng.random() < 0.1 else round(float(rng.normal(120, 15)), 2)
        measured.append((number, p, concept, str(rng.choice(days)), value, unit))
    columns = ["person_id", "observation_period_start_date", "observation_period_end_date"]
    return {
        "person": person,
        "observation_period": pd.DataFrame(periods, columns=columns),
        "concept_ancestor": pd.DataFrame(
            [(201826, 201826), (201826, 4193704), (320128, 320128)],
            columns=["ancestor_concept_id", "descendant_concept_id"],
        ),
        "condition_occurrence": pd.DataFrame(
            conditions, columns=["person_id", "condition_concept_id", "condition_start_date"]
        ),
        "measurement": pd.DataFrame(
            measured,
            columns=[
                "measurement_id",
                "person_id",
                "measurement_concept_id",
                "measurement_date",
                "value_as_number",
                "unit_concept_id",
            ],
        ),
    }


def compute(frames: Frames) -> pd.DataFrame:
    """The same features by pandas."""
    o, m = frames["observation_period"], frames["measurement"]
    whole = o[(o.observation_period_start_date <= "2019-01-01") & (o.observation_period_end_date >= "2020-01-01")]
    people = frames["person"][frames["person"].person_id.isin(whole.person_id)].set_index("person_id")
    found = pd.DataFrame({"age": 2020 - people.year_of_birth, "male": (people.gender_concept_id == 8507).astype(int)})
    c = frames["condition_occurrence"]
    before = c[c.condition_start_date < "2020-01-01"]
    for name, concepts in (("diabetes", [201826, 4193704]), ("hypertension", [320128])):
        found[name] = found.index.isin(before[before.condition_concept_id.isin(concepts)].person_id).astype(int)
    m = m[(m.measurement_date < "2020-01-01") & m.value_as_number.notna()]
    for name, concept, unit in (("systolic", 3004249, 8876), ("bmi", 3038553, 9531)):
        own = m[(m.measurement_concept_id == concept) & (m.unit_concept_id == unit)]
        last = own.sort_values(["measurement_date", "measurement_id"]).groupby("person_id").value_as_number.last()
        found[name] = last.reindex(found.index)
    return found.sort_index()


def fill_sqlite(path: Path, frames: Frames) -> str:
    with sqlite3.connect(path) as base:
        base.executescript(TABLES)
        for name, frame in frames.items():
            frame.to_sql(name, base, index=False, if_exists="append")
    return f"sqlite:///{path}"


def fill_postgres(address: str, frames: Frames) -> str:
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        for name in frames:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in filter(str.strip, TABLES.split(";")):
            cursor.execute(statement)
        for name, frame in frames.items():
            rows = ", ".join(
                "(" + ", ".join("NULL" if pd.isna(cell) else repr(cell) for cell in row) + ")"
                for row in frame.astype(object).itertuples(index=False, name=None)
            )
            cursor.execute(f"INSERT INTO {name} VALUES {rows}")  # noqa: S608 - our own numbers
        connection.commit()
    return address


def compare(address: str, frames: Frames) -> None:
    expected = compute(frames)
    assert 100 < len(expected) < 200
    assert expected.systolic.isna().any()
    assert 0 < expected.diabetes.sum() < len(expected)
    source = {"url": address, "query": QUERY}
    ready = prepare({"clinic": source}, id="person_id", missing="mean")
    table = open_table(ready["clinic"])
    assert table.names == tuple(expected.columns)
    np.testing.assert_array_equal(np.asarray(table.ids).astype(int), expected.index)
    np.testing.assert_allclose(table.X, expected.fillna(expected.mean()).to_numpy(dtype=float), rtol=1e-12)
    assert FederatedPCA(2, scale=True, random_state=0).fit(ready).n_samples_ == len(expected)


def test_on_sqlite(frames: Frames, tmp_path: Path) -> None:
    compare(fill_sqlite(tmp_path / "omop.db", frames), frames)


def test_on_postgresql(frames: Frames, postgres: str) -> None:
    compare(fill_postgres(postgres, frames), frames)

"""The exponents of benchmarks/scale.py, one point of it, and docs/scale.md, which is made from its result."""

from __future__ import annotations

from typing import Any

import pytest

from fedspan.cli.bench_command import import_benchmarks


@pytest.fixture(scope="module")
def scale() -> Any:
    return import_benchmarks("scale")


def test_an_exponent_is_found_again(scale) -> None:
    x = [10, 100, 1000]
    exact = scale.fit(x, [3 * n**1.5 for n in x])
    assert exact["exponent"] == pytest.approx(1.5)
    assert exact["off"] == pytest.approx(1.0)
    bent = scale.fit(x, [10, 10, 1000])  # logarithms 1, 1, 3: slope 1, off by 1/3, 2/3, 1/3
    assert bent["exponent"] == pytest.approx(1.0)
    assert bent["off"] == pytest.approx(10 ** (2 / 3))
    assert bent["last"] == pytest.approx(2.0)


def test_a_point_counts_the_bytes_of_its_arrays(scale) -> None:
    case = {"method": "krylov", "clients": 5, "rows": 6, "features": 30, "components": 2, "cohort": None, "rounds": 3}
    point = scale.apart(case)
    assert 0 < point["up"] - 8 * 30 * 2 < 200  # the header
    assert point["down"] == point["up"]
    assert point["seconds"] == pytest.approx(point["server"] + 5 * point["client"])
    assert min(point["server"], point["client"], point["opening"]) > 0
    assert point["keys"] == 0


def test_the_result_covers_what_the_issue_asks(scale) -> None:
    points = import_benchmarks().latest(import_benchmarks().find("scale"))["points"]
    assert {10, 100_000} <= {p["clients"] for p in points}
    assert {100, 20_000} <= {p["features"] for p in points}
    assert all(row.where == "beyond the paper" for row in scale.claims(points))


def test_the_page_is_what_the_result_gives(scale) -> None:
    page = import_benchmarks("scale_page")
    text = page.PAGE.read_text(encoding="utf-8")
    for mark, lines in page.parts().items():
        between = text.split(f"<!-- {mark} begins -->\n")[1].split(f"<!-- {mark} ends -->")[0]
        assert between == "\n".join(lines) + "\n", f"{mark}: do python benchmarks/scale.py --write"

"""scikit-learn's own tests of PCA, run on FederatedPCA with the rows cut into three clients (pooled_pca.py)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sklearn

# What fails, how often, and why that is as it should be. All other tests must pass, in float64 and in float32.
EXPECTED = {
    "test_sparse_pca_solver_error": (8, "svd_solver: ours take sparse rows, whatever the solver"),
    "test_pca_validation": (8, "svd_solver: limits and wording of scipy's solvers"),
    "test_pca_svd_solver_auto": (5, "svd_solver: which of its own solvers scikit-learn chooses"),
    "test_n_components_mle_error": (2, "svd_solver: ours can estimate the number of components with any exact solver"),
    "test_n_components_none": (
        3,
        "svd_solver: arpack leaves one component out (once); the fourth component of four centred rows does not exist, "
        "and ours does not make one up (twice)",
    ),
    "test_pca_score": (
        5,
        "scikit-learn multiplies orthonormal components by their deviations once more if whiten is set, and expects "
        "that to lower the likelihood; the distribution of the rows does not depend on whiten",
    ),
    "test_pca_score3": (1, "a model of 0 components"),
    "test_pca_zero_noise_variance_edge_cases": (
        2,
        "scores 3 rows of 100 features by the inverse of a singular covariance; ours says that there is none",
    ),
}
PASSED = 376


@pytest.mark.long
@pytest.mark.skipif(tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9), reason="the counts are those of 1.9")
def test_scikit_learns_own_tests_of_pca(tmp_path: Path) -> None:
    import sklearn.decomposition.tests.test_pca as theirs

    source = inspect.getsource(theirs)
    line = "from sklearn.decomposition import PCA\n"
    assert source.count(line) == 1
    (tmp_path / "test_adapted.py").write_text(source.replace(line, "from pooled_pca import PCA\n"), encoding="utf-8")
    found = tmp_path / "found.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "SKLEARN_RUN_FLOAT32_TESTS": "1",
        "SKLEARN_TESTS_GLOBAL_RANDOM_SEED": "42",
    }
    environment = {name: value for name, value in environment.items() if not name.startswith(("PYTEST", "COV_"))}
    options = ["-p", "sklearn.conftest", "-p", "no:cacheprovider", "-q", "--tb=line", f"--junitxml={found}"]
    command = [sys.executable, "-m", "pytest", *options, "test_adapted.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    failed, passed = Counter[str](), 0
    for case in ElementTree.parse(found).iter("testcase"):  # noqa: S314 - we made it
        if case.find("failure") is not None or case.find("error") is not None:
            failed[re.sub(r"\[.*", "", case.attrib["name"], flags=re.DOTALL)] += 1
        elif case.find("skipped") is None:
            passed += 1
    assert failed == {name: count for name, (count, _) in EXPECTED.items()}, ran.stdout[-4000:]
    assert passed == PASSED

"""The process of a job at a site loads what it needs, and not what only estimators or torch models need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

LOOK = """
import json, sys
{imports}
from nvflare.fuel.utils.import_utils import optional_import
found = optional_import(module="nvflare.app_opt.pt.decomposers", name="TensorDecomposer")[1]
heavy = ("torch", "sklearn", "scipy.stats", "pandas", "matplotlib")
print(json.dumps([found, [name for name in heavy if sys.modules.get(name)]]))
"""


def look(imports: str) -> tuple[bool, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(imports=imports)], capture_output=True, text=True, check=True, timeout=300
    )
    found, heavy = json.loads(done.stdout.splitlines()[-1])
    return found, heavy


def test_a_sites_job_loads_neither_torch_nor_scikit_learn() -> None:
    assert look("import fedspan.deployment.flare, nvflare.collab.runtime.executor") == (False, [])


def test_the_servers_job_loads_no_torch_and_an_estimator_only_when_one_is_asked_for() -> None:
    assert look("import fedspan.deployment.operations.flare_server, nvflare.collab.runtime.controller") == (False, [])


def test_without_our_switch_flare_would_load_torch() -> None:
    """So the tests above can fail."""
    pytest.importorskip("torch", reason="needs fedspan[deep]")
    found, heavy = look("import nvflare.collab.runtime.executor")
    assert found
    assert "torch" in heavy

"""Three hospitals whose kits have certificates, and researchers with kits of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from certificates import ADA, BOB, Authority

from fedspan.deployment.loopback_federation import LoopbackFederation


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="session")
def researchers(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kits of those who may sign orders, and of those who may not, by their names."""
    folder = tmp_path_factory.mktemp("researchers")
    kits = {name: authority.make_kit(folder / name, name, "lead") for name in (ADA, BOB)}
    kits["south"] = authority.make_kit(folder / "south", "south")  # a site, which asks for nothing
    kits["late"] = authority.make_kit(folder / "late", ADA, "lead", days=(-20, -1))
    kits["early"] = authority.make_kit(folder / "early", ADA, "lead", days=(1, 20))
    kits["foreign"] = Authority().make_kit(folder / "foreign", ADA, "lead")
    return kits


@pytest.fixture
def make_gated(
    make_three: Callable[..., LoopbackFederation], authority: Authority, researchers: dict[str, Path]
) -> Callable[..., LoopbackFederation]:
    """A federation of three hospitals over loopback whose orders are signed by Ada."""

    def make(**rules: Any) -> LoopbackFederation:
        made = make_three(**rules)
        for name, kit in made.sites.items():
            authority.make_kit(kit, name)
        made.researcher = researchers[ADA]
        return made

    return make

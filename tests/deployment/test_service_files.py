"""Units and containers: what starts a kit with the machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedspan.deployment.operations.service_files import write_unit
from typed import assert_refused, call

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["site", "server"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kit = tmp_path / "north"
    (kit / "startup").mkdir(parents=True)
    name = {"site": "fed_client.json", "server": "fed_server.json"}[request.param]
    (kit / "startup" / name).write_text("{}")
    return kit


def test_systemd_accepts_the_unit(kit: Path, tmp_path: Path) -> None:
    done = call("site", "service", kit, "--user", "root", "--proxy", "http://proxy.example.org:3128", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    unit = tmp_path / "fedspan-north.service"
    assert f"site start {kit}" in unit.read_text()
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("needs systemd-analyze")
    found = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False)
    about = [line for line in found.stderr.splitlines() if "fedspan-north" in line]
    assert not about, about


def test_only_a_server_may_open_a_port_below_1024(kit: Path) -> None:
    _, text = write_unit(kit, "fedspan")
    server = (kit / "startup" / "fed_server.json").exists()
    assert ("AmbientCapabilities=CAP_NET_BIND_SERVICE" in text) is server
    assert f"ReadWritePaths={kit}" in text
    assert "https_proxy" not in text


def test_what_a_unit_cannot_hold(kit: Path, tmp_path: Path) -> None:
    assert_refused(call("site", "service", kit, "--user", "a\nExecStart=/bin/sh"), 2, "not the name of a user")
    assert_refused(call("site", "service", kit, "--proxy", "http://a\nUser=root"), 2, "A proxy is given as")
    odd = tmp_path / "my kit"
    shutil.copytree(kit, odd)
    assert_refused(call("site", "service", odd), 2, "spaces", "move it")
    assert_refused(call("site", "service", tmp_path), 2, "is not a FLARE kit")


def test_the_containers_start_what_the_image_has() -> None:
    yaml = pytest.importorskip("yaml", reason="needs fedspan[flare]")
    tree = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text(encoding="utf-8"))
    image = (ROOT / "containers" / "Containerfile").read_text(encoding="utf-8")
    assert set(tree["services"]) == {"server", "site"}
    for service in tree["services"].values():
        assert service["image"] == "fedspan"
        assert service["read_only"] is True
        assert any(str(volume).endswith(":/kit") for volume in service["volumes"])
    assert "ports" not in tree["services"]["site"]
    assert re.search(r"^USER 10001$", image, re.MULTILINE)
    assert 'CMD ["site", "start", "/kit"]' in image


def test_the_image_has_no_fault_that_hadolint_knows() -> None:
    tool = shutil.which("hadolint")
    if tool is None:
        pytest.skip("needs hadolint")
    done = subprocess.run(
        [tool, str(ROOT / "containers" / "Containerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout

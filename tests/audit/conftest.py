"""These tests type commands too: they share the world of the tests of the command line."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from cli_fixtures import fedspan, private, world

__all__ = ["fedspan", "private", "world"]

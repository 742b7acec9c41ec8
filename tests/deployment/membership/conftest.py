"""The tests of membership use what those of real federations use."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "flare"))

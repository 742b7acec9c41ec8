"""Pages are tested with the browser of the reports' tests, and with the orders and kits of the approvals' tests."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("reports", "deployment", "deployment/approval", "cli")]

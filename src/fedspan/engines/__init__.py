"""How messages get to clients and back."""

from fedspan.engines.inprocess import Faults, InProcess
from fedspan.engines.loopback import Loopback

__all__ = ["Faults", "InProcess", "Loopback"]

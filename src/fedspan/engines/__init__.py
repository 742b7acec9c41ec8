"""How messages get to clients and back."""

from fedspan.engines.inprocess import Faults, InProcess

__all__ = ["Faults", "InProcess"]

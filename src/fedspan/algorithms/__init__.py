"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.krylov import Krylov
from fedspan.algorithms.oneshot import Gram
from fedspan.algorithms.power import Ssi

__all__ = ["Gram", "Krylov", "Ssi"]

"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.paper_noise import PaperNoise
from fedspan.algorithms.power import LocalPower, Ssi
from fedspan.algorithms.private import NoisyGram, NoisyPower

__all__ = [
    "Davidson",
    "DrSvd",
    "Faps",
    "FedPower",
    "Gram",
    "Krylov",
    "LocalPower",
    "NoisyGram",
    "NoisyPower",
    "PaperNoise",
    "Prior",
    "Ssi",
    "Uda",
    "Wda",
]

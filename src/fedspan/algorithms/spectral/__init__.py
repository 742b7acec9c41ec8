"""PCA and SVD: the leading eigenvectors of a sum of Gram matrices."""

from fedspan.algorithms.spectral._eigenspace import SpectralState

__all__ = ["SpectralState"]

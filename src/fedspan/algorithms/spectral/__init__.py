"""PCA and SVD: the leading eigenvectors of a sum of Gram matrices."""

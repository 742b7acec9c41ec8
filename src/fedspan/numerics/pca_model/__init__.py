"""What a fitted PCA says about rows: coordinates, likelihoods, and how many components there should be."""

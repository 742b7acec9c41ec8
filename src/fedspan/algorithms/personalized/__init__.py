"""Personalized PCA: components of each client's own, drawn towards shared ones."""

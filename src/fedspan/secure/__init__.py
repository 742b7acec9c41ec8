"""Secure aggregation: the server learns sums over the clients, and nothing else."""

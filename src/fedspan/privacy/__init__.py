"""What leaves a client, bounded and masked: secure aggregation, differential privacy, and attacks on both."""

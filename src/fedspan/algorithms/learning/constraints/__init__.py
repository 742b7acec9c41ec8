"""Limits on losses, and how a run keeps them."""

"""Audits: what left the clients of a run, and what a curious server could work out from it."""

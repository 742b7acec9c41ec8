"""The protocol, the loop over rounds, and what a run leaves behind: ledger and checkpoint."""

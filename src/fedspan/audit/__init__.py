"""What a server could work out from what it saw."""

"""Which row of one client and which row of another are the same entity: ids, and ways to compare them."""

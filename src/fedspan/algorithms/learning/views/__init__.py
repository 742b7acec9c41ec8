"""What a view of the rows computes of a model: with the built-in network, or with torch modules."""

"""Commands for data of the field: genotypes."""

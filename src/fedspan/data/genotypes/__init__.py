"""Genotypes as clients: PLINK and PGEN files, their variants, and products with them."""

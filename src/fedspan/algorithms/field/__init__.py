"""What clients of genomics agree on before their data are rows: variants, frequencies, genes."""

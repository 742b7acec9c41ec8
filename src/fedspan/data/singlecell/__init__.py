"""Single cells as clients: h5ad files and Zarr stores of counts, read some cells at a time."""

"""What the cells of a client's table mean: how a text file is written, and which number or word a cell is."""

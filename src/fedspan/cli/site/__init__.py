"""`fedspan site`: what the administrator of a site does."""

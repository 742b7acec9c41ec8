"""Models in a notebook: how they are shown, drawn and compared."""

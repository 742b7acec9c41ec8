"""A site's tables: how jobs see them, and what their administrator is told."""

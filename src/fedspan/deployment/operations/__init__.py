"""What keeps a federation running: who is there, and jobs that start quickly."""

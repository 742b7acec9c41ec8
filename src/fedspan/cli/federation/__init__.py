"""Commands of those who run a federation: the coordinator, and whoever asks who is there."""

"""Who learns what in which order."""

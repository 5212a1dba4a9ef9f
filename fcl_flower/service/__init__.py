"""What outlives a run: a federation that goes on with new tasks, and its members."""

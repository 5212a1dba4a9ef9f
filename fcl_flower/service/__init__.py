"""A federation that outlives its runs: it goes on with new tasks, and has members."""

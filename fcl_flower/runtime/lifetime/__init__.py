"""How long what was started goes on: as long as who started it, and alone."""

"""Pages of a run and of a comparison; they import the other results only."""

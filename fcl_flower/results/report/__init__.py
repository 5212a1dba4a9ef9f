"""One self-contained HTML page for a run, or for runs side by side."""

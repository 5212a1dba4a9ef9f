"""Settings: of a run, and of the place where a client runs."""

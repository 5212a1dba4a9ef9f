"""The sections of a run's page, one file each."""

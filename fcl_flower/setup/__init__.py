"""The way from a configuration to the objects of a run."""

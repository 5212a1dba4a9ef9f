"""The commands that write what others take from a run."""

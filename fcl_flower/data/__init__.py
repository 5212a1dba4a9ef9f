"""Data: sources (whole sets), scenarios (who learns what), tasks (tensors)."""

"""Measures of a run beside accuracy and bytes: transfer, classes, and what it took."""

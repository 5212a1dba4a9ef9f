"""Differential privacy: what hides a client's data, and what it has cost."""

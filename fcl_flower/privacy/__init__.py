"""Differential privacy: mechanisms that hide a client's data, and their cost."""

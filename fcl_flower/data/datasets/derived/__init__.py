"""Data sets that are made of others."""

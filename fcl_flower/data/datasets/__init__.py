"""Whole data sets and where they come from."""

"""Settings of a run and of a client's machine, as text and as checked values.

It may import `aggregation` and `core`.
"""

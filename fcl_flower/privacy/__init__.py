"""Differential privacy: mechanisms that hide a client's data, and their cost.

It may import `config` and all rooms below it.
"""

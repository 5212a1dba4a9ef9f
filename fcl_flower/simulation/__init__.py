"""Runs on this machine: clients in one process, in several, or in Flower's Ray.

It may import all rooms below it.
"""

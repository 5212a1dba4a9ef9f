"""Runs on this machine: clients in one process, in several, or in Flower's Ray.

It may import all below it, and starts the rounds on transports of its own.
"""

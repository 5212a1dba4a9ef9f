"""The rounds of a federation: both sides of every message, over any `Transport`.

It imports no Flower, and no room above it.
"""

"""The rounds of a federation: both sides of each message, whatever carries it.

It may import `setup` and all rooms below it, but not Flower.
"""

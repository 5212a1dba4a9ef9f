"""The nouns of the system, and tools for all rooms.

It imports no other room, and neither torch nor Flower.
"""

"""The rounds of a federation: both sides of every message, whatever carries it.

Nothing here knows Flower: requests and replies are ours; a `Transport` carries them.
"""

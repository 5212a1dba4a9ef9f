"""The way from a configuration to the objects of a run.

It may import `algorithms` and all rooms below it.
"""

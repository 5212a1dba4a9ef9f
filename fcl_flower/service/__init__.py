"""A federation that outlives its runs: it goes on with new tasks, and has members.

It may import `rounds` and all rooms below them.
"""

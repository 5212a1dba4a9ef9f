"""A federation that outlives its runs: it learns new tasks, and has members.

It may import `rounds` and all rooms below it.
"""

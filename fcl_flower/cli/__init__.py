"""The command ``fcl``: text in, a result or one sentence out.

It may import `exports` and all rooms below it.
"""

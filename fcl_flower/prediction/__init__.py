"""The use of a model after training: raw inputs in, names of classes out.

It may import `deploy` and all rooms below it.
"""

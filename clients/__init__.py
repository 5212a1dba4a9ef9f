"""The client sides of methods, one file or folder each.

They may import `fcl_flower`, no Flower, and of `strategies` what both sides share.
"""

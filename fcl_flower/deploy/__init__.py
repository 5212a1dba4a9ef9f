"""A federation on real machines: `fcl server`, `client`, `run` and `serve`.

It may import `simulation` and all rooms below it; `speedups` alone may use private
parts of Flower.
"""

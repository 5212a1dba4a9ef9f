"""A federation on real machines: `fcl server`, `client`, `run` and `serve`.

Processes, certificates, the reverse proxy at the door, metrics and diagnosis. It may
import all below it. What replaces private parts of Flower is in `speedups`.
"""

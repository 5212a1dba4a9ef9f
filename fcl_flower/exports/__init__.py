"""Exports for other programs: sheets and figures of runs, and trained networks.

They may import every room but the interfaces: commands, service and deployment.
"""

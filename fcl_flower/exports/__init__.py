<<<<<<< HEAD
"""Exports for other programs: sheets and figures of runs, and trained networks.

They may import every room but the interfaces: commands, service and deployment.
=======
"""Exports of a finished run: sheets, tables, figures, networks.

It may import `prediction` and all rooms below it.
>>>>>>> f449d2f656a7fe28329d7d1546111acbee185a91
"""

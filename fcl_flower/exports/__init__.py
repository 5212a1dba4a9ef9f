"""Exports of a finished run: sheets, tables, figures, networks.

It may import `prediction` and all rooms below it.
"""

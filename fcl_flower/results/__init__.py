"""Results of a run: metrics, records, tables, reports.

It may import `data` and all rooms below it, but not `training`.
"""

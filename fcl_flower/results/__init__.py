"""Results of a run: measures, record, tables, reports and trackers.

They import data, models, privacy, configuration and core.
"""

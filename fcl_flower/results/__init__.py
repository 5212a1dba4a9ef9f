"""Results of a run: metrics, records, tables, reports."""

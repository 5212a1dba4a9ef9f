"""What a run leaves: metrics, records, tables, reports."""

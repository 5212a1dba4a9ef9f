"""What others take from a finished run: sheets, tables, figures, networks."""

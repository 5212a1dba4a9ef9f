"""Exports of a finished run: sheets, tables, figures, networks."""

"""Data turned into charts of Plotly: one kind of chart a file."""

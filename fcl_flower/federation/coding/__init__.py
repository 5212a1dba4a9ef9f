"""How values become bytes: rounded to a precision, and compressed."""

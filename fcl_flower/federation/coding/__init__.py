"""How values become bytes: rounded to a precision, compressed; scores."""

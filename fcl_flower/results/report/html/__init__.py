"""The page that a report is: markup, style, numbers as text."""

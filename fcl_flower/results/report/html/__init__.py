"""The page that a report is: its content as data, templates, numbers as text."""

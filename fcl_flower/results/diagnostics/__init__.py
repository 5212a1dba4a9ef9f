"""What the scalars of one family of methods tell, for the results."""

"""Server sides of the algorithms, one file or room each, with their declarations."""

"""Client sides of the algorithms, one file or room each."""

"""The client sides of the algorithms, one file or folder each."""

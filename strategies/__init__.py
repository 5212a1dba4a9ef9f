"""The server sides of the algorithms, one file or folder each, and declarations."""

"""Local data: the files of each client."""

"""Local data: each client's own files."""

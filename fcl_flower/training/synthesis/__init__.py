"""Making samples on the server from a model alone, without any data."""

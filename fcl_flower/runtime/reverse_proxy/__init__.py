"""The only part of a server that is reached from outside."""

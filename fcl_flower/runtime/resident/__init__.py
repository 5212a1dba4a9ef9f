"""A client's SuperNode, and its worker, which stays from message to message."""

"""A client's worker, which stays from one message of a run to the next."""

"""Server, clients and rounds: all that speaks Flower during a run."""

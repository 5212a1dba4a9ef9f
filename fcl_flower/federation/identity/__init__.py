"""Who calls: the keys of clients, and the number that each key speaks for."""

"""Where updates and states lie that memory must not hold all at once."""

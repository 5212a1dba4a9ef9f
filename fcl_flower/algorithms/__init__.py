"""What an algorithm is: its two sides, and the registry that finds it."""

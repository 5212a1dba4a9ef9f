"""Where the numbers of a run go for those who look at them elsewhere."""

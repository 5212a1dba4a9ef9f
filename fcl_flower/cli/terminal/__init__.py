"""What a terminal shows of runs: while they go on, and when they are over."""

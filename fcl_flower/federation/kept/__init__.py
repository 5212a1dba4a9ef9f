"""What a process keeps between two messages of one run."""

"""A process that runs one run after another, for the command that has started it."""

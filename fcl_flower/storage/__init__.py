"""What lies on the disk of one machine: who may read it, and who works on it."""

"""Where a federation runs: this process, Ray, or real machines."""

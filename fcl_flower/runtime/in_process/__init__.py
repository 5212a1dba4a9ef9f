"""A whole federation on this machine without Flower's runtimes: no Ray, no network."""

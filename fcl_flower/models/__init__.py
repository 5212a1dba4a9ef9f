"""Networks, with a head for each task or a single one."""

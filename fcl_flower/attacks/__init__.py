"""What a hostile client sends, for simulations: no real client can be made one."""

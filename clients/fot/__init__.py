"""FOT, client side."""

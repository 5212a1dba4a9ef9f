"""APD, client side."""

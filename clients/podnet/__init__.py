"""PODNet, client side."""

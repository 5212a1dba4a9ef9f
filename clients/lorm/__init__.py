"""LoRM, client side."""

"""What gradients of single samples tell: making them, and samples from them."""

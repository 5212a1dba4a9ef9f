"""FedET, client side."""

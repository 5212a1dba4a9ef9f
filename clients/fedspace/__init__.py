"""FedSpace, client side."""

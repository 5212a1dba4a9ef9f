"""The client side of FedET."""

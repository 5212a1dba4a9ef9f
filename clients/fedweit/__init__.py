"""FedWeIT, client side."""

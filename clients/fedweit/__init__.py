"""The client side of FedWeIT."""

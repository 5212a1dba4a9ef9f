"""FedSeIT, client side."""

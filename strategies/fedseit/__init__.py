"""FedSeIT, server side."""

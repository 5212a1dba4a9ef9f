"""FedWeIT whose new tasks start from a matching foreign task, client side."""

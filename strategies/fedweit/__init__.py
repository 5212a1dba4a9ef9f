"""FedWeIT, server side."""

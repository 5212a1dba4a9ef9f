"""FedET, server side."""

"""Networks as folders that Hugging Face's library opens."""

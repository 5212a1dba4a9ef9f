"""Several runs on identical scenarios: what they are, and doing them."""

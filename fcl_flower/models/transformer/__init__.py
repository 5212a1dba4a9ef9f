"""Pre-trained transformer encoders, whole or with Enhancers."""

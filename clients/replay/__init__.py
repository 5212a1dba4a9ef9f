"""Replay of samples of old tasks, client side."""

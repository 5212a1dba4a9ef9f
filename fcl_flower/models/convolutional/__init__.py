"""Convolutional networks for images, series and texts."""

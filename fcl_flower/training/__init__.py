"""The local training loop, distillation, and conversion between NumPy and torch."""

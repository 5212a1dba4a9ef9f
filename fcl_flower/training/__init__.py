"""The local training loop, distillation, and NumPy <-> torch."""

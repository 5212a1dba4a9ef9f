"""Local training, distillation, and conversion between NumPy and torch.

It may import `data` and all rooms below it, but not `results`.
"""

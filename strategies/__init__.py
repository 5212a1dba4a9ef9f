"""The server sides of methods, one file or folder each, with their declarations.

They may import `fcl_flower`, but neither client sides nor Flower. A ``trainer.py`` may
import torch.
"""

"""GLFC, client side: old and new classes learn at one pace, taught by an old model."""

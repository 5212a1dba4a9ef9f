"""The command ``fcl``."""

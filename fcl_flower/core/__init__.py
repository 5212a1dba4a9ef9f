"""The nouns of the system and tools for all packages, without torch or Flower."""

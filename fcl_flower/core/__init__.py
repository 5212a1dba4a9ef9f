"""Nouns of the system and what everything else needs: no torch, no Flower."""

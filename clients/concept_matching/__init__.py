"""Concept Matching, client side."""

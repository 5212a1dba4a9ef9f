"""Concept Matching, server side."""

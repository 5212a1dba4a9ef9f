"""Sections on adapters of other clients, which some methods choose and attend to."""

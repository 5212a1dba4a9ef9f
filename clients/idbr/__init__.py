"""IDBR, client side: what is common to all tasks and what is not are held apart."""

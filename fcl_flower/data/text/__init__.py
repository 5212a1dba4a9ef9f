"""Texts as numbers: tokenizers and word vectors."""

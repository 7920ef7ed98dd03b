"""Moves actions in and observations out. Knows spec and native; has never heard of torch."""

"""Policies as plain torch modules: encoders, recurrent cores, heads, action distributions. Knows spec and torch."""

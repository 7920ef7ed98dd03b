"""Policies as plain torch modules: encoders, recurrent cores, action heads. Knows spec, config, plugins and torch."""

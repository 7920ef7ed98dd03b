"""Moves actions in and observations out: VecEnv, its backends and its views. Knows spec and native, not torch."""

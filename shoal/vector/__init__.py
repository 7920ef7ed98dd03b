"""Moves actions in and observations out: VecEnv, its backends, its views. Knows spec, native and config, not torch."""

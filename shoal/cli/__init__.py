"""The `shoal` command, one file per verb. Knows the whole library, which knows nothing of the command line."""

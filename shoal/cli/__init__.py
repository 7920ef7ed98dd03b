"""The `shoal` command, one file per verb. Knows the whole library; nothing in it knows of the command line."""

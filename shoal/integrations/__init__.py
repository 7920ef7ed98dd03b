"""Translates between Shoal and other libraries, one file each. Knows vector; nothing inside knows of it."""

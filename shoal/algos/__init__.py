"""Algorithms, each one file that reads top to bottom, over shared ops and rollouts. Knows vector envs and nn."""

"""Algorithms, each one file that reads top to bottom, over shared ops and rollouts. Knows vector envs and nn.

A file that assigns ALGORITHM is an algorithm (algorithm.py). collect/ plays policies on envs and fills rollouts; fast/
has the same computations as kernels and C; optimizers/ has the optimizers.
"""

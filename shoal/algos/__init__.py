"""Algorithms: one file each, readable top to bottom, on shared ops and rollouts. Knows vector envs and nn.

A file that assigns ALGORITHM is an algorithm (algorithm.py). collect/ plays policies on envs and fills rollouts; fast/
implements the same computations in GPU kernels and C; optimizers/ holds the optimizers.
"""

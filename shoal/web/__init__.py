"""Envs and policies in a browser: an env header as WebAssembly, a policy's network as data for policy.h, one page.

Knows native, train and runs. `from_files.py` and what it imports know no torch. `build.py` imports the standard library
alone: hatch_build.py uses it, too.
"""

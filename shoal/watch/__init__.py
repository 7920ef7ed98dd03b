"""`shoal watch`: a local page of runs. Reads files of run folders and serves them; never writes there, runs none of it.

Knows runs, log, plot and names. `worker.py`, a process of its own, knows web, match and sweep, too, and imports
torch if a run needs it.
"""

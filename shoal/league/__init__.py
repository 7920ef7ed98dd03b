"""A league: who plays against the learner, what came of it, and how strong everyone is.

`League` (league.py) decides, from results and steps alone: matchmaking.py, payoff.py, ratings.py and snapshots.py are
its parts. bank.py and seating.py act: they hold the members' weights and seat them in the envs. Knows options, seeds
and networks; knows nothing of runs, folders and the command line.
"""

from __future__ import annotations

"""Matches: runs, checkpoints and robots of an env against each other. `shoal match` is the command.

    from shoal.match import play_match

    match = play_match(["seek", "flee"], env="vacuum", env_options={"preset": "duel-stun"}, games=1000)
    print(match.table.result(0, 1), match.table.ratings())

contestants.py finds the players, games.py seats them and plays; report.py reads the league of a run. Knows runs,
training and leagues; knows nothing of the command line.
"""

from __future__ import annotations

from shoal.match.games import Match, play_match
from shoal.match.report import LeagueReport, read_league

__all__ = ["LeagueReport", "Match", "play_match", "read_league"]

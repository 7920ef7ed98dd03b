"""The stock recurrent cores in one namespace. shoal/nn/cores/ explains what a core is and how to add one."""

from __future__ import annotations

from shoal.nn.cores import CORES as PLUGINS
from shoal.nn.cores import LONGEST, State, time_scales
from shoal.nn.cores.lstm import LSTM, lstm_gates
from shoal.nn.cores.mingru import MinGRU
from shoal.nn.scan import scan

__all__ = ["CORES", "LONGEST", "LSTM", "MinGRU", "State", "lstm_gates", "scan", "time_scales"]

CORES = {name: PLUGINS.find(name) for name in PLUGINS.stock()}

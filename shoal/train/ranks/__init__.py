"""Several processes that train one run: who they are, how they exchange tensors, and what happens when one fails.

    world.py     World: this process among all; what they send each other
    meeting.py   how the processes of one attempt find each other
    watch.py     a thread that finds processes that died or hang, and ends this one then
    sameness.py  compares the code and the options of all processes before anything starts
    timing.py    times exchanges alone
    launch.py    starts the processes of one machine, as torchrun does

torchrun (or `--gpus` and `--processes`, which start processes by its parts) sets the variables that `world.py` reads.
Knows torch.distributed; knows nothing of learning. sharded.py trains with it.
"""

from __future__ import annotations

from shoal.train.ranks.world import World, delay_sigterm, is_launched, join, rank_of, take_own_gpu

__all__ = ["World", "delay_sigterm", "is_launched", "join", "rank_of", "take_own_gpu"]

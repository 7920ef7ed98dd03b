"""Records the package `minatar` (GPL-3, not part of Shoal) at play: `python -m tests.minatar_record`.

Writes tests/data/minatar.npz, which tests/test_minatar.py replays in the twins of tests/minatar_twin.py. The package is
used from outside: actions in, observations and rewards out. Needs numpy and minatar, nothing of Shoal. The players look
a few frames ahead in a twin, so that episodes are long enough to see rare things. Actions are not sticky: a recording
has the actions that were played.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .minatar_twin import DOWN, FIRE, LEFT, RIGHT, TWINS, UP, cells_of, follow, speeds_of

PATH = Path(__file__).parent / "data" / "minatar.npz"
SEEDS = {"asterix": 0, "breakout": 0, "freeway": 0, "invaders": 41, "seaquest": 0}  # of the players
NAMES = {"invaders": "space_invaders"}  # where the package has another name
FRAMES = {  # at most, of each episode
    "asterix": [700, 700, 700, 700],
    "breakout": [1200, 300, 300],
    "freeway": [2600],
    "invaders": [900, 500, 300],
    "seaquest": [700, 700, 400, 600, 600, 400],
}


def first_twin(game: str, planes: np.ndarray, ramping: bool) -> Any:
    """A twin that shows the first observation of an episode."""
    twin = TWINS[game]({"ramping": int(ramping)})
    if game == "breakout":
        twin.start("left" if planes[3, 0, 1] else "right")
    if game == "freeway":
        twin.start(speeds_of(cells_of(planes)))
    return twin


def survives(twin: Any, action: int, frames: int) -> bool:
    """Whether the player lives that long, by standing still after the action, if nothing new enters."""
    twin = copy.deepcopy(twin)
    event = (None, None) if hasattr(twin, "until_diver") else None
    for k in range(frames):
        if hasattr(twin, "until_diver"):
            twin.until_diver = max(1, twin.until_diver)
        twin.play(action if k == 0 else 0, event)
        if twin.is_over:
            return False
    return True


def wishes(game: str, twin: Any, generator: random.Random) -> list[int]:
    """Actions, the best one first."""
    anything = generator.sample(range(6), 6)
    if game == "breakout":
        ahead = copy.deepcopy(twin)
        while not (ahead.ball[1] == 8 and ahead.dy == 1):
            ahead.play(0, None)
        steps_aside = generator.random() < 0.5 and 0 <= ahead.ball[0] + ahead.dx <= 9  # both cells meet the ball
        target = ahead.ball[0] + (ahead.dx if steps_aside else 0)
        return [RIGHT if target > twin.paddle else LEFT if target < twin.paddle else generator.choice([0, UP, FIRE])]
    if game == "freeway":
        return [UP if generator.random() < 0.8 else anything[0]]
    if game == "seaquest":
        if (twin.oxygen < 60 or twin.divers == 6) and twin.divers > 0 and generator.random() < 0.95:
            return [UP, *anything]
        near = min(twin.lost, key=lambda one: abs(one[1] - twin.y) + abs(one[0] - twin.x), default=None)
        if near and generator.random() < 0.7:
            towards = DOWN if near[1] > twin.y else UP if near[1] < twin.y else RIGHT if near[0] > twin.x else LEFT
            anything = [towards, *anything]
        return [action for action in anything if action != UP or twin.y > 1 or twin.divers != 0]
    if game == "invaders":
        near = min((x for x, _ in twin.aliens), key=lambda x: abs(x - twin.x))
        aim = RIGHT if near > twin.x else LEFT if near < twin.x else FIRE
        return [aim if generator.random() < 0.7 else FIRE, *anything]
    return anything


def choose(game: str, twin: Any, generator: random.Random) -> int:
    wanted = wishes(game, twin, generator)
    if game in ("breakout", "freeway"):
        return wanted[0]
    for frames in (6, 3, 1):
        for action in wanted:
            if survives(twin, action, frames):
                return action
    return wanted[0]


def record(game: str, episode: int, frames: int) -> dict[str, np.ndarray]:
    """One episode: actions, rewards, and the bits of the observations that changed from the last."""
    from minatar import Environment  # the GPL-3 package

    generator, ramping = random.Random(SEEDS[game] + episode), episode % 3 != 2
    env = Environment(NAMES.get(game, game), sticky_action_prob=0.0, difficulty_ramping=ramping)
    env.seed(1000 + episode)
    env.reset()
    planes = [env.state()]
    twins = [first_twin(game, planes[0], ramping)]
    actions, rewards, is_over = [], [], False
    while not is_over and len(actions) < frames:
        action = choose(game, twins[0], generator)
        reward, is_over = env.act(action)
        planes.append(env.state())
        twins = follow(twins, action, int(reward), bool(is_over), cells_of(planes[-1]))
        if not twins:
            raise AssertionError(f"{game}, episode {episode}, frame {len(actions)}: no twin explains what is seen")
        actions.append(action)
        rewards.append(int(reward))
    bits = np.packbits(np.stack(planes).reshape(len(planes), -1), axis=1)
    bits[1:] ^= bits[:-1].copy()
    facts = np.array([[len(actions), ramping, is_over]], np.int32)
    return {
        "facts": facts,
        "actions": np.array(actions, np.uint8),
        "rewards": np.array(rewards, np.uint8),
        "bits": bits,
    }


def replay() -> Iterator[tuple[str, int, bool, bool, np.ndarray, np.ndarray, np.ndarray]]:
    """Of every episode: game, number, ramping, did it end, actions, rewards, planes (one more than actions)."""
    with np.load(PATH) as arrays:
        for game in FRAMES:
            actions, rewards, bits = (arrays[f"{game}/{name}"] for name in ("actions", "rewards", "bits"))
            at = 0
            for episode, (frames, ramping, is_over) in enumerate(arrays[f"{game}/facts"].tolist()):
                own = np.bitwise_xor.accumulate(bits[at + episode : at + episode + frames + 1], axis=0)
                planes = np.unpackbits(own, axis=1)[:, : 100 * TWINS[game].channels].reshape(frames + 1, 10, 10, -1)
                part = slice(at, at + frames)
                yield game, episode, bool(ramping), bool(is_over), actions[part], rewards[part], planes
                at += frames


def main() -> None:
    arrays = {}
    for game, limits in FRAMES.items():
        episodes = [record(game, episode, frames) for episode, frames in enumerate(limits)]
        arrays |= {f"{game}/{name}": np.concatenate([one[name] for one in episodes]) for name in episodes[0]}
        print(
            game,
            "frames",
            [len(one["actions"]) for one in episodes],
            "returns",
            [one["rewards"].sum() for one in episodes],
        )
    PATH.parent.mkdir(exist_ok=True)
    np.savez_compressed(PATH, **arrays)
    print(PATH.name, PATH.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

"""Pictures of midrange: the plane from above, and the space-time graph of side 0.

    python examples/midrange_pictures.py --out docs/images/midrange

Writes safe.png, too_late.png and defend.png, three moments that docs/midrange.md explains; with --game also game.gif, a
game of two scripted robots. Shows how a script plays given actions, reads the graph's curves and renders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import shoal

STRAIGHT, LEFT, FIRE = (1, 0), (2, 0), (1, 1)
# name: km at the start, then (decisions of 0.5 s, what side 0 does, what side 1 does)
MOMENTS = {
    "safe": (26.0, [(10, STRAIGHT, STRAIGHT)]),
    "too_late": (17.0, [(8, STRAIGHT, STRAIGHT)]),
    "defend": (19.0, [(1, FIRE, FIRE), (4, STRAIGHT, STRAIGHT), (10, LEFT, STRAIGHT)]),
}


def main() -> None:
    """Plays the moments and writes their pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="the folder to write to")
    parser.add_argument("--width", type=int, default=800, help="pixels")
    parser.add_argument("--game", nargs=2, metavar=("ROBOT_0", "ROBOT_1"), help="also game.gif, of two robots")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, (km, moves) in MOMENTS.items():
        vec = shoal.make("midrange", 1, start_min=km, start_max=km, start_angle=0.3, space_time=1)
        obs, _ = vec.reset(seed=4)
        for decisions, own, enemy in moves:
            for _ in range(decisions):
                obs, *_ = vec.step(np.array([own, enemy]))
        write(vec.frame(0, width=args.width), args.out / f"{name}.png")
        left, right = 20 * obs[0, 43:45]  # in units of 20 km
        print(f"{args.out / name}.png: margin {left:.1f} km to the left, {right:.1f} km to the right")
    if args.game:
        play(*args.game, args.out / "game.gif", args.width)


def write(frame: np.ndarray, path: Path) -> None:
    """A picture of few colors, to keep the file small."""
    Image.fromarray(frame).quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def play(robot_0: str, robot_1: str, path: Path, width: int) -> None:
    """A whole game, a frame per second."""
    vec = shoal.make("midrange", 1, robot_0=robot_0, robot_1=robot_1)
    vec.reset(seed=1)
    frames, is_over, decisions = [], False, 0
    while not is_over:
        if decisions % 2 == 0:
            frames.append(Image.fromarray(vec.frame(0, width=width)))
        _, _, terminated, _, _ = vec.step(np.array([STRAIGHT, STRAIGHT]))
        is_over, decisions = bool(terminated.any()), decisions + 1
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, loop=0)


if __name__ == "__main__":
    main()

"""Pictures of the gallery: plays every header of examples/gallery for some steps and writes what it draws.

    python examples/gallery.py --out pictures

Shows how a script finds headers, plays at random among the actions that a mask allows, and renders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import shoal

GALLERY = Path(__file__).parent / "gallery"


def play(vec: shoal.VecEnv, steps: int, seed: int) -> None:
    """Random steps of one env, among the actions that its mask allows."""
    rng = np.random.default_rng(seed)
    vec.action_space.seed(seed)
    _, infos = vec.reset(seed=seed)
    for _ in range(steps):
        actions = vec.action_space.sample()
        if vec.mask_size:
            scores = infos["action_mask"] * rng.random((vec.num_rows, vec.mask_size))
            actions = scores.argmax(axis=1)
        _, _, _, _, infos = vec.step(actions)


def main() -> None:
    """Writes NAME.png for every header."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="the folder to write to")
    parser.add_argument("--steps", type=int, default=6, help="random steps before the picture")
    parser.add_argument("--width", type=int, default=240, help="pixels")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for header in sorted(GALLERY.glob("*.h")):
        vec = shoal.make(header, 1, seed=0)
        play(vec, args.steps, seed=0)
        Image.fromarray(vec.frame(0, width=args.width)).save(args.out / f"{header.stem}.png")
        print(f"{args.out / header.stem}.png: {len(vec.draw(0)['items'])} shapes")
        vec.close()


if __name__ == "__main__":
    main()

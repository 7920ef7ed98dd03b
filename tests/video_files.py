"""Reads the videos that the tests record."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def read_video(path: Path) -> tuple[list[np.ndarray], list[float]]:
    """The frames of a file, and the seconds that each is shown."""
    if path.suffix == ".gif":
        from PIL import Image

        frames, seconds = [], []
        with Image.open(path) as image:
            for k in range(image.n_frames):
                image.seek(k)
                frames.append(np.array(image.convert("RGB")))
                seconds.append(image.info["duration"] / 1000)
        return frames, seconds
    import av

    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return frames, [float(1 / rate)] * len(frames)

"""Run folders that no training would leave: links, pipes, broken files, texts that would be code in a page."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from .fake_runs import fake_run

EVIL = '<img src=x onerror="hacked=1">'


def hostile_runs(root: Path, outside: Path) -> None:
    """Makes them in `root`; what they link to is `outside`, and has the word SECRET."""
    outside.mkdir()
    secret = fake_run(outside, "secret", "s")
    (outside / "secret.json").write_text('{"env": "SECRET", "status": "SECRET"}')
    (outside / "secret.jsonl").write_text('{"step": 1, "wall_s": 1, "SECRET": 5}\n')
    (root / "linked").mkdir()
    (root / "linked" / "folder").symlink_to(secret.folder)
    (root / "linkenv").symlink_to(outside / "secret")
    texts = {
        "broken": "{",
        "list": "[1, 2]",
        "deep": "[" * 100_000,
        "number": "7",
        "types": json.dumps(
            {"env": ["x"], "algo": {"a": 1}, "seed": "x", "started": 5, "total_steps": "many", "pid": "x"}
        ),
        "huge": f'{{"env": "{"e" * 99_999}", "seed": 1{"0" * 400}, "total_steps": 1e999, "pid": 99999999999999999999}}',
        "binary": b"\xff\xfe\x00".decode("latin1"),
    }
    for name, text in texts.items():
        folder = root / "bad" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(text)
        (folder / "summary.json").write_text(text)
        (folder / "config.toml").write_text(f"x = [[[\n{text[:50]}")
        (folder / "metrics.jsonl").write_text(
            '{"step": NaN}\n{"step": 1, "wall_s": Infinity, "x": 1e308, "y": -1e308, "z": 1e999}\n\n{{{\n[]\n'
            '{"step": 2, "wall_s": "x", "x": NaN, "y": 1' + "0" * 400 + '}\n{"step": 3, "x": 1e308, "y": null}\n{"st'
        )
    for file in ("run.json", "summary.json", "metrics.jsonl", "config.toml", "train.lock"):
        run = fake_run(root, "links", file)
        (run.folder / file).unlink(missing_ok=True)
        (run.folder / file).symlink_to(outside / ("secret.jsonl" if file.endswith("l") else "secret.json"))
    for file in ("run.json", "summary.json", "metrics.jsonl", "config.toml", "train.lock"):  # nobody writes to them
        pipe = fake_run(root, "pipes", file, status=None)
        (pipe.folder / file).unlink(missing_ok=True)
        os.mkfifo(pipe.folder / file)
    (root / "names").mkdir()
    with contextlib.suppress(OSError):  # not all file systems take it
        os.mkdir(os.fsencode(root) + b"/names/\xff")
        (root / "names" / os.fsdecode(b"\xff") / "run.json").write_text("{}")
    videos = fake_run(root, "videos", "v").folder / "videos"
    videos.mkdir()
    (videos / "a.gif").write_bytes(b"GIF89a")
    (videos / "b.gif").symlink_to(outside / "secret.json")
    (videos / "c.html").write_text("<script>hacked=1</script>")
    for name in (EVIL, "a,b %2F\"'&"):
        run = fake_run(root, "names", name)
        facts = {
            **run.facts,
            "env": EVIL,
            "algo": EVIL,
            "started": EVIL,
            "commit": EVIL,
            "device": "half \ud800",
            "command": [EVIL],
            "seed": 1,
        }
        (run.folder / "run.json").write_text(json.dumps(facts))
        (run.folder / "config.toml").write_text(f"x = '{EVIL}'\n['{EVIL}']\ny = 1\n")
        record = {"step": 1, "wall_s": 1, EVIL: 1, f"episode/{EVIL}": 2, "half \ud800": 1, "episode/return": 1}
        (run.folder / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps({**record, 'step': 2})}\n")
        finding = {"fact": EVIL, "advice": EVIL}
        (run.folder / "summary.json").write_text(
            json.dumps({"status": EVIL, "reason": EVIL, "diagnosis": [finding, 5]})
        )

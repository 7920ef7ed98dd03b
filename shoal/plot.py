"""Learning curves: runs that differ only in their seed become one line with a band around it. Writes PNG and HTML.

Reads the records of runs; knows nothing of torch. A PNG needs matplotlib. The HTML page is one file and needs nothing.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal import html_page
from shoal.errors import ConfigError, did_you_mean
from shoal.log.base import human
from shoal.runs import Run
from shoal.spec import Array
from shoal.stats import t_975

Band = Literal["range", "ci95"]

POINTS = 400  # of a line over several runs
SHOWN_OPTIONS = 6  # at most, of those that differ, in a label
NOT_DIFFERENCES = ("seed", "log", "resume", "runs", "checkpoint", "device", "name")  # options that keep runs comparable
NOT_COMPARED = ("vec.torch_threads",)  # measured, and without effect on what a run is
# colours that the colour-blind can distinguish (Okabe and Ito), without the faint ones
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#56b4e9", "#b8860b", "#5c5c5c")

WORDS = {
    "step": "steps",
    "wall_s": "training time (s)",
    "sps": "steps per second",
    "episode/return": "episode return",
    "episode/length": "episode length",
    "eval/return": "evaluated return",
    "kl": "KL",
}


@dataclass(frozen=True)
class Curve:
    """One line: the mean over its runs, and a band where there are several."""

    label: str
    x: Array
    mean: Array
    low: Array
    high: Array
    runs: tuple[str, ...]

    @property
    def has_band(self) -> bool:
        """Whether it is over several runs."""
        return len(self.runs) > 1


@dataclass(frozen=True)
class Figure:
    """What to draw: labels and numbers."""

    title: str
    x_label: str
    y_label: str
    note: str  # what the band and the smoothing are
    curves: tuple[Curve, ...]


def figure(
    runs: Sequence[Run], y: str = "episode/return", x: str = "step", smooth: float = 1.0, band: Band = "range"
) -> Figure:
    """Groups the runs and averages each group over the range of x that all its runs cover.

    A `*` in `y` stands for a name: `episode/return/*` is one line for each agent and group. `smooth` is a percentage of
    the axis. `band` is the range of the runs, or the mean's confidence interval.
    """
    groups = _group(runs)
    envs = list(dict.fromkeys(env for env, _, _ in groups))
    curves = []
    for label, members in zip(group_labels(list(groups)), groups.values()):
        for key, name in _keys(members, y).items():
            lines = [_smooth(*_points(run, x, key), smooth) for run in members]
            joined = f"{label}: {name}" if name and len(groups) > 1 else name or label
            curves.append(_mean(joined, lines, tuple(run.id for run in members), band))
    notes = []
    most = max(len(curve.runs) for curve in curves)
    if most > 1:
        meaning = "minimum to maximum of the runs" if band == "range" else "95 % confidence interval of the mean"
        notes.append(f"line: mean of the runs; band: {meaning}")
    if smooth:
        notes.append(f"smoothed over {smooth:g} % of the axis")
    return Figure(", ".join(envs), WORDS.get(x, x), _words(y.replace("/*", "")), "; ".join(notes), tuple(curves))


# ---- from runs to curves ----


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"train": {"epochs": 4}}` as `{"train.epochs": 4}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def _group(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """By env, algorithm and every option that makes a difference, in the order given; each run once."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        key = group_key(str(run.facts.get("env", run.env)), str(run.facts.get("algo", "")), flatten(_options(run)))
        groups.setdefault(key, []).append(run)
    return groups


def group_key(env: str, algo: str, options: Mapping[str, Any]) -> tuple[str, str, str]:
    """The same for runs that differ in their seed alone. `options` are those of `flatten`."""
    telling = {k: v for k, v in options.items() if k.split(".")[0] not in NOT_DIFFERENCES and k not in NOT_COMPARED}
    return env, algo, json.dumps(telling, sort_keys=True, default=str)


def _options(run: Run) -> dict[str, Any]:
    """The run's options, with the number of envs that it had: 0 in its config.toml means one that Shoal chose."""
    try:
        options = dict(run.config)
    except ConfigError:  # a run without its config.toml still has a curve
        options = {}
    if "num_envs" in run.facts:
        options["vec"] = {**options.get("vec", {}), "num_envs": run.facts["num_envs"]}
    return options


def group_labels(keys: Sequence[tuple[str, str, str]]) -> list[str]:
    """What distinguishes each group: env, algorithm, then the options that differ."""
    options = [json.loads(text) for _, _, text in keys]
    names = dict.fromkeys(name for table in options for name in table)
    differing = [name for name in names if len({json.dumps(table.get(name)) for table in options}) > 1]
    many_envs, many_algos = len({key[0] for key in keys}) > 1, len({key[1] for key in keys}) > 1
    labels = []
    for (env, algo, _), table in zip(keys, options):
        parts = [env] if many_envs else []
        parts += [algo] if many_algos or not (many_envs or differing) else []
        same_env = [other for other, key in zip(options, keys) if key[:2] == (env, algo)]
        telling = [name for name in differing if len({json.dumps(other.get(name)) for other in same_env}) > 1]
        # first: it depends on the machine where nobody chose it, so that nobody expects it to differ
        telling.sort(key=lambda name: name != "vec.num_envs")
        parts += [f"{name.split('.')[-1]} {_plain(table.get(name, 'default'))}" for name in telling[:SHOWN_OPTIONS]]
        parts += [f"+{len(telling) - SHOWN_OPTIONS} options"] if len(telling) > SHOWN_OPTIONS else []
        labels.append(", ".join(part for part in parts if part) or env)
    return labels


def _keys(runs: Sequence[Run], y: str) -> dict[str, str]:
    """The metrics that `y` means, each with what its `*` stands for; without a `*`, `y` itself."""
    if "*" not in y:
        return {y: ""}
    before, _, after = y.partition("*")
    records = [record for run in runs for record in run.metrics()]
    known = dict.fromkeys(key for record in records for key, value in record.items() if _is_number(value))
    matching = {key: key[len(before) : len(key) - len(after)] for key in known if fnmatchcase(key, y)}
    found = {key: name for key, name in matching.items() if name and "/" not in name}
    if not found:
        raise ConfigError(f"run {runs[0].id} has no metric '{y}'. It has {', '.join(sorted(known))}.")
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _points(run: Run, x: str, y: str) -> tuple[Array, Array]:
    """The records that have both, sorted by x."""
    records = run.metrics()
    if not records:
        raise ConfigError(f"run {run.id} has no records: {run.folder / 'metrics.jsonl'} is empty.")
    pairs = [(r[x], r[y]) for r in records if _is_number(r.get(x)) and _is_number(r.get(y))]
    if not pairs:
        known = sorted({key for record in records for key, value in record.items() if _is_number(value)})
        raise ConfigError(f"run {run.id} has no '{y}'.{did_you_mean(y, known)} It has {', '.join(known)}.")
    points = np.array(pairs, np.float64)
    points = points[np.argsort(points[:, 0], kind="stable")]
    return points[:, 0], points[:, 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _smooth(x: Array, y: Array, percent: float) -> tuple[Array, Array]:
    """A moving average: a window of `percent` of the axis, narrower at the ends."""
    reach = (x[-1] - x[0]) * percent / 200
    if reach <= 0:
        return x, y
    reach = np.minimum(reach, np.minimum(x - x[0], x[-1] - x))  # symmetric, or the ends would bend
    reach = reach + 1e-9 * (x[-1] - x[0])  # a point at the window's edge counts on both sides
    first, last = np.searchsorted(x, x - reach, "left"), np.searchsorted(x, x + reach, "right")
    sums = np.concatenate([[0.0], np.cumsum(y)])
    return x, (sums[last] - sums[first]) / (last - first)


def _mean(label: str, lines: Sequence[tuple[Array, Array]], runs: tuple[str, ...], band: Band) -> Curve:
    if len(lines) == 1:
        x, y = lines[0]
        if len(x) > 5 * POINTS:
            grid = np.linspace(x[0], x[-1], 5 * POINTS)
            x, y = grid, np.interp(grid, x, y)
        return Curve(label, x, y, y, y, runs)
    begin, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.linspace(begin, max(begin, end), POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    mean = values.mean(0)
    if band == "range":
        return Curve(label, grid, mean, values.min(0), values.max(0), runs)
    count = len(lines)
    half = t_975(count - 1) * values.std(0, ddof=1) / math.sqrt(count)
    return Curve(label, grid, mean, mean - half, mean + half, runs)


def _words(y: str) -> str:
    return WORDS.get(y, y.replace("episode/", "episode ").replace("/", " ").replace("_", " "))


# ---- drawing ----


INSTALL = 'pip install "shoal[plot]"'


def has_matplotlib() -> bool:
    """Whether PNGs can be written."""
    return importlib.util.find_spec("matplotlib") is not None


def check_matplotlib() -> None:
    """Raises where matplotlib is missing, with the command that installs it."""
    if not has_matplotlib():
        raise ConfigError(f"a PNG needs matplotlib: {INSTALL}. Without it: --out curves.html")


def write_png(figure: Figure, path: Path) -> None:
    """A picture for a page or a paper."""
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter

    ink, faint = "#222222", "#8a8a8a"
    canvas = Canvas(figsize=(8, 4.8), dpi=160, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    for k, curve in enumerate(figure.curves):
        colour = COLOURS[k % len(COLOURS)]
        if curve.has_band:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(curve.x, curve.mean, color=colour, linewidth=1.8, marker=marker, label=_legend(curve))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c8c8c8")
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors="#555555", labelsize=9, length=0)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human(value)))
    axes.set_xlabel(figure.x_label, color="#555555")
    axes.set_title(f"{figure.title}: {figure.y_label}", loc="left", color=ink, fontsize=13, fontweight="bold", pad=12)
    axes.legend(frameon=False, fontsize=9, labelcolor=ink)
    if figure.note:
        canvas.supxlabel(figure.note, x=0.99, ha="right", fontsize=7.5, color=faint)
    canvas.savefig(path, format="png", facecolor="white")


def write_html(figure: Figure, path: Path) -> None:
    """One page without dependencies. Pointer and arrow keys show the values; it has a light and a dark theme."""
    data = {
        "title": figure.title,
        "x": figure.x_label,
        "y": figure.y_label,
        "note": figure.note,
        "curves": [
            {
                "label": _legend(curve),
                "runs": curve.runs,
                "x": _rounded(curve.x),
                "mean": _rounded(curve.mean),
                **({"low": _rounded(curve.low), "high": _rounded(curve.high)} if curve.has_band else {}),
            }
            for curve in figure.curves
        ],
    }
    title = f"{figure.title}: {figure.y_label}"
    path.write_text(html_page.fill(Path(__file__).parent / "plot.html", title, data=html_page.data_text(data)))


def _legend(curve: Curve) -> str:
    return f"{curve.label} ({len(curve.runs)} runs)" if curve.has_band else curve.label


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in values]

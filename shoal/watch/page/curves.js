// curves.js: the curves of some runs: asked for when charts are visible, again while runs train, and grouped by seeds.

import { Chart, colour, mean, redrawAll, settings, smoothed } from "./chart.js";
import { ask, make, repeat } from "./data.js";

const POLL = 2000;
const FIRST = ["episode/return", "eval/return", "episode/length", "sps"];
const LAST = /^(time\/|rollout\/|memory_mb|cpu_percent|iteration$)/;
const ENDS = /_(min|max)$/;

// A curve with points that are new: those of the known one before `from` stay.
const extended = (known, { from, points }) => points.map((column, k) => (from ? [...known[k].slice(0, from), ...column] : column));

export class Curves {
  // `groups`: [{label, runs}]. Every metric becomes a chart in `place`.
  // `main` is a place for the chart of the returns.
  constructor(place, groups, t = [], main = null) {
    Object.assign(this, { place, groups, t, main, keys: [], charts: new Map(), data: new Map(), asked: "" });
    this.text = "";
    this.poll = repeat(() => this.load(), POLL);
  }
  close() {
    this.poll.stop();
    for (const chart of this.charts.values()) chart.close();
  }

  async load() {
    const runs = this.groups.flatMap((group) => group.runs), wanted = this.wanted(), asked = JSON.stringify(wanted);
    const query = [...wanted.map((key) => ["key", key]), ...runs.map((run) => ["run", run])];
    // a version goes with the metrics that were asked for: others are not known yet
    query.push(...runs.map((run) => ["version", asked === this.asked ? String(this.data.get(run)?.version ?? "") : ""]));
    const found = (await ask("curves", query)).runs;
    this.asked = asked;
    let changed = false;
    for (const [run, one] of Object.entries(found)) {
      if (!one.curves) continue;
      changed = true;
      const known = this.data.get(run) ?? { curves: {} };
      const merged = Object.entries(one.curves).map(([key, more]) => [key, extended(known.curves[key], more)]);
      this.data.set(run, { version: one.version, keys: one.keys, curves: { ...known.curves, ...Object.fromEntries(merged) } });
    }
    if (!changed) return;
    this.lines = new Map();
    const keys = [...new Set([...this.data.values()].flatMap((one) => one.keys))];
    if (keys.length !== this.keys.length) { this.keys = keys; this.build(); this.poll.now(); }
    redrawAll();
  }
  // The metrics of visible charts; at first the most usual ones.
  wanted() {
    if (!this.charts.size) return FIRST;
    return [...this.charts].filter(([, chart]) => chart.isVisible && chart.canvas.isConnected).map(([key]) => key);
  }

  setFilter(text) { this.text = text.toLowerCase(); this.build(); }
  build() {
    const known = this.keys.filter((key) => !ENDS.test(key) || !this.keys.includes(key.replace(ENDS, "")));
    const rank = (key) => (FIRST.includes(key) ? FIRST.indexOf(key) : LAST.test(key) ? 90 : key.startsWith("episode/") ? 10 : key.startsWith("eval/") ? 11 : 20);
    const first = this.main && known.includes(FIRST[0]) ? FIRST[0] : null;
    const keys = known.filter((key) => key !== first && key.toLowerCase().includes(this.text)).sort((a, b) => rank(a) - rank(b));
    for (const key of known) if (!this.charts.has(key)) this.charts.set(key, new Chart(key, () => this.linesOf(key), { height: key === first ? 250 : 190 }));
    if (first && !this.main.childElementCount) this.main.replaceChildren(this.charts.get(first).node);
    const nodes = keys.map((key) => this.charts.get(key).node);
    if (nodes.some((node, k) => this.place.children[k] !== node) || this.place.children.length !== nodes.length) this.place.replaceChildren(...nodes);
    if (!keys.length) this.place.replaceChildren(make("p", {}, this.keys.length ? "No such metric." : "No metrics yet."));
  }
  forget() { this.lines = new Map(); }

  linesOf(key) {
    this.lines ??= new Map();
    if (this.lines.has(key)) return this.lines.get(key);
    const lines = [];
    this.groups.forEach(({ label, runs }, k) => {
      const members = [];
      for (const run of runs) {
        const curve = this.data.get(run)?.curves[key];
        if (!curve?.[0].length) continue;
        const x = curve[settings.x === "wall" ? 1 : 0];
        members.push({ run, x, y: smoothed(x, curve[2], settings.smooth) });
      }
      if (!members.length) return;
      const several = members.length > 1;
      if (settings.apart && several) members.forEach(({ run, x, y }) => lines.push({ label: run, colour: colour(k), x, y, faint: true }));
      lines.push({ label: several ? `${label} (${members.length} runs)` : label, colour: colour(k), ...mean(members, settings.band, this.t) });
    });
    this.lines.set(key, lines);
    return lines;
  }
}

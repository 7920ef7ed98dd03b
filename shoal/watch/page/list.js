// list.js: the table of runs: filter, sort, choose. Only rows that changed are made again.

import { $, age, ask, duration, human, kept, make, path, repeat, say, statusDot } from "./data.js";

const POLL = 2000;
const FIRST = 200; // rows before "show all"
const progress = (row) => (row.total > 0 && row.step !== null ? Math.min(1, row.step / row.total) : 0);
const COLUMNS = [ // key, title, whether it is a number, cell
  ["status", "", false, (row) => statusDot(row.status)],
  ["env", "env", false, (row) => row.env],
  ["id", "run", false, null],
  ["algo", "algo", false, (row) => row.algo],
  ["seed", "seed", true, (row) => row.seed ?? "–"],
  ["step", "steps", true, (row) => [make("span", { class: "fill", style: `--share:${(100 * progress(row)).toFixed(1)}%` }, human(row.step))]],
  ["return", "return", true, (row) => say(row.return)],
  ["eval", "evaluated", true, (row) => [say(row.eval), row.eval_ci95 === null || row.eval === null ? null : make("span", { class: "soft" }, ` ± ${say(row.eval_ci95)}`)]],
  ["sps", "steps/s", true, (row) => human(row.sps)],
  ["wall_s", "time", true, (row) => duration(row.wall_s)],
  ["started", "started", false, (row) => age(row.started)],
];
const ALIASES = { run: "id", steps: "step", time: "wall_s", evaluated: "eval" };

export const runs = new Map(); // all rows, by name
export const picked = new Set(kept.get("picked", []));
export let others = { seeds: {}, sweeps: {} };
let version = 0;

export async function refresh() {
  const found = await ask("runs", { since: String(version) });
  if (found.version < version) { version = 0; runs.clear(); return refresh(); } // another server
  const changed = new Set(Object.keys(found.runs));
  for (const [name, row] of Object.entries(found.runs)) runs.set(name, row);
  for (const name of found.gone) { runs.delete(name); picked.delete(name); changed.add(name); }
  version = found.version;
  others = found;
  return changed;
}

export function pick(name, on) {
  if (on) picked.add(name);
  else picked.delete(name);
  kept.set("picked", [...picked]);
  showPicked();
}
export function showPicked() {
  $("picked").textContent = picked.size ? `(${picked.size})` : "";
  document.querySelector('nav [data-view="compare"]').href = `#/compare/${[...picked].map(path).join(",")}`;
}

// ---- the filter: words, and conditions such as score>100 or train.learning_rate<0.01 ----

export function parse(text) {
  return text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const found = /^(-?)([A-Za-z_][\w.\-/]*)(!=|<=|>=|=|<|>)(.+)$/.exec(word);
    if (!found) return { not: word.startsWith("-") && word.length > 1, text: word.replace(/^-/, "").toLowerCase() };
    const name = ALIASES[found[2]] ?? found[2];
    return { not: found[1] === "-", name, sign: found[3], wanted: found[4].toLowerCase(), number: count(found[4]) };
  });
}
function count(text) { // 20M
  const found = /^(-?[\d.]+(?:e[+-]?\d+)?)([kMGT]?)$/i.exec(text);
  return found ? Number(found[1]) * { k: 1e3, m: 1e6, g: 1e9, t: 1e12 }[found[2].toLowerCase()] || Number(found[1]) : NaN;
}
const isColumn = (name) => COLUMNS.some(([key]) => key === name) || name === "score";
export const optionsOf = (conditions) => conditions.map((one) => one.name).filter((name) => name && !isColumn(name));

export function holds(condition, name, row, options) {
  let result;
  if (condition.text !== undefined) {
    result = `${name} ${row.env} ${row.algo} ${row.status} seed${row.seed ?? ""}`.toLowerCase().includes(condition.text);
  } else {
    const value = isColumn(condition.name) ? row[condition.name] : options[condition.name]?.[name];
    const numeric = typeof value === "number" && !Number.isNaN(condition.number);
    const [a, b] = numeric ? [value, condition.number] : [String(value ?? "").toLowerCase(), condition.wanted];
    const order = { "=": a === b, "!=": a !== b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b };
    result = value !== null && value !== undefined && order[condition.sign];
  }
  return condition.not ? !result : Boolean(result);
}

// ---- the view ----

export class List {
  constructor(place) {
    this.sort = kept.get("sort", { key: "started", down: true });
    this.extra = kept.get("columns", []); // options as columns
    this.values = {}; // of options, by name and run
    this.rows = new Map(); // elements
    this.limit = FIRST;
    this.filter = make("input", { id: "filter", type: "search", placeholder: "filter: breakout  status=running  score>100  train.learning_rate<0.01", "aria-label": "filter",
      value: kept.get("filter", ""), oninput: () => { kept.set("filter", this.filter.value); this.limit = FIRST; this.show(); } });
    this.count = make("span", { id: "count", class: "soft" });
    this.go = make("a", { class: "button", hidden: true }, "Compare");
    this.clear = make("button", { hidden: true, onclick: () => { for (const name of [...picked]) pick(name, false); this.rows.clear(); this.show(); } }, "Clear");
    this.names = make("datalist", { id: "options" });
    this.adder = make("input", { list: "options", placeholder: "+ option as a column", "aria-label": "option as a column", size: "22",
      onfocus: () => this.loadNames(), onchange: () => this.addColumn(this.adder.value.trim()) });
    this.head = make("tr", {});
    this.body = make("tbody", {});
    this.more = make("button", { hidden: true, onclick: () => { this.limit = Infinity; this.show(); } });
    this.below = make("div", {});
    place.replaceChildren(make("div", { class: "bar sticky" }, this.filter, this.adder, this.names, this.count, this.go, this.clear),
      make("div", { class: "wide" }, make("table", { id: "runs" }, make("thead", {}, this.head), this.body)), this.more, this.below);
    this.poll = repeat(async () => {
      const changed = await refresh();
      for (const name of changed) this.rows.delete(name);
      if (changed.size && Object.keys(this.values).length) await this.loadOptions(true);
      if (changed.size || !this.isShown) this.show();
      this.isShown = true;
      if (others.partial) setTimeout(() => this.poll.now(), 0); // there are more
    }, POLL);
  }
  close() { this.poll.stop(); }

  async loadNames() {
    if (this.names.childElementCount) return;
    const { names } = await ask("options");
    this.names.replaceChildren(...names.map((name) => make("option", { value: name })));
  }
  async loadOptions(again = false) {
    const wanted = [...new Set([...this.extra, ...optionsOf(parse(this.filter.value))])].filter((name) => again || !(name in this.values));
    if (!wanted.length) return;
    for (const name of wanted) this.values[name] ??= {};
    Object.assign(this.values, (await ask("options", wanted.map((name) => ["name", name]))).values);
  }
  addColumn(name) {
    this.adder.value = "";
    if (!name) return;
    this.extra = this.extra.includes(name) ? this.extra.filter((one) => one !== name) : [...this.extra, name];
    kept.set("columns", this.extra);
    this.rows.clear();
    this.show();
  }

  async show() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    await this.loadOptions();
    if (turn !== this.turn) return;
    const conditions = parse(this.filter.value), { key, down } = this.sort;
    const value = (name, row) => (isColumn(key) ? row[key] : this.values[key]?.[name]) ?? null;
    const shown = [...runs].filter(([name, row]) => conditions.every((one) => holds(one, name, row, this.values)));
    shown.sort(([a, x], [b, y]) => {
      const [p, q] = [value(a, x), value(b, y)];
      if ((p === null) !== (q === null)) return p === null ? 1 : -1; // unknown values are last
      const order = typeof p === "number" && typeof q === "number" ? p - q : String(p ?? "").localeCompare(String(q ?? ""));
      return (down ? -order : order) || b.localeCompare(a);
    });
    this.showHead();
    this.body.replaceChildren(...shown.slice(0, this.limit).map(([name, row]) => this.row(name, row)));
    this.more.hidden = shown.length <= this.limit;
    this.more.textContent = `Show all ${shown.length}`;
    const links = others.links ? `, ${others.links} links not followed` : "";
    const all = `${runs.size} run${runs.size === 1 ? "" : "s"}${links}`;
    this.count.textContent = shown.length === runs.size ? all : `${shown.length} of ${all}`;
    if (!runs.size) this.body.replaceChildren(make("tr", {}, make("td", { colspan: "12" }, "No runs yet. Start one: shoal train cartpole")));
    this.showPick();
    this.showOthers();
  }
  showPick() {
    this.go.hidden = this.clear.hidden = !picked.size;
    this.go.textContent = `Compare ${picked.size}`;
    this.go.href = `#/compare/${[...picked].map(path).join(",")}`;
    showPicked();
  }
  showHead() {
    const { key, down } = this.sort;
    const title = (name, text, isNumber) => make("th", { class: `c-${name}${isNumber ? " number" : ""}`, "aria-sort": key === name ? (down ? "descending" : "ascending") : "none" },
      make("button", { "data-sort": name, onclick: () => { this.sort = { key: name, down: key === name ? !down : isNumber || name === "started" }; kept.set("sort", this.sort); this.show(); } },
        text || "●", key === name ? (down ? " ↓" : " ↑") : ""));
    this.head.replaceChildren(make("th", {}), ...COLUMNS.map(([name, text, isNumber]) => title(name, text, isNumber)),
      ...this.extra.map((name) => make("th", {}, make("button", { "data-sort": name, title: `${name}: click to sort`, onclick: () => { this.sort = { key: name, down: key === name ? !down : true }; this.show(); } }, name.split(".").pop(), key === name ? (down ? " ↓" : " ↑") : ""),
        make("button", { title: "remove this column", "aria-label": `remove ${name}`, onclick: () => this.addColumn(name) }, "×"))));
  }
  row(name, row) {
    const known = this.rows.get(name);
    if (known) return known;
    const box = make("input", { type: "checkbox", checked: picked.has(name), "aria-label": `choose ${row.id}`, onchange: () => { pick(name, box.checked); this.showPick(); } });
    const node = make("tr", { "data-run": name }, make("td", {}, box), COLUMNS.map(([key, , isNumber, cell]) =>
      make("td", { class: `c-${key}${isNumber ? " number" : ""}`, title: key === "id" ? row.reason || row.status : null }, key === "id" ? make("a", { href: `#/run/${path(name)}` }, row.id) : cell(row))),
      this.extra.map((option) => make("td", { class: "number" }, say(this.values[option]?.[name]))));
    this.rows.set(name, node);
    return node;
  }
  showOthers() {
    const seeds = Object.entries(others.seeds ?? {}), sweeps = Object.entries(others.sweeps ?? {});
    const table = (rows) => make("div", { class: "wide" }, make("table", {}, rows));
    this.below.replaceChildren(...[
      seeds.length ? [make("h2", {}, "Groups of seeds"), table(seeds.reverse().slice(0, FIRST).map(([, one]) => make("tr", {}, make("td", {}, one.env),
        make("td", {}, make("a", { href: `#/compare/${one.runs.map(path).join(",")}` }, one.id)), make("td", {}, `${one.runs.length} seeds`),
        make("td", {}, one.mean === null ? "" : `mean score ${say(one.mean)}${one.ci95 === null ? "" : ` ± ${say(one.ci95)}`}`))))] : [],
      sweeps.length ? [make("h2", {}, "Sweeps"), table(sweeps.reverse().slice(0, FIRST).map(([name, one]) => make("tr", {}, make("td", {}, one.env),
        make("td", {}, make("a", { href: `#/sweep/${path(name)}` }, one.id)), make("td", {}, `${human(one.trials)} trials`),
        make("td", { class: "soft" }, one.options.join(", ")))))] : [],
    ].flat());
  }
}

// compare.js: several runs side by side: curves of groups that differ in their seed alone, results, options that differ.

import { colour, toolbar } from "./chart.js";
import { Curves } from "./curves.js";
import { ask, duration, human, make, path, say, statusDot } from "./data.js";

export class Compare {
  constructor(place, names) {
    this.place = place;
    if (!names.length) {
      place.replaceChildren(make("h1", {}, "Compare"), make("p", {}, "Choose runs in the list, and come back."));
      return;
    }
    this.begin(names);
  }
  close() { this.curves?.close(); this.isClosed = true; }

  async begin(names) {
    let found;
    try {
      found = await ask("compare", names.map((name) => ["run", name]));
    } catch (error) {
      this.place.replaceChildren(make("p", {}, error.message));
      return;
    }
    if (this.isClosed) return;
    const count = Object.keys(found.runs).length;
    if (!count) { this.place.replaceChildren(make("h1", {}, "Compare"), make("p", {}, "These runs are gone.")); return; }
    const charts = make("div", { class: "charts" }), apart = found.groups.length === 1 && count > 1;
    const filter = make("input", { type: "search", placeholder: "find a metric", "aria-label": "find a metric", oninput: () => this.curves.setFilter(filter.value) });
    const groupOf = new Map(found.groups.flatMap(({ runs }, k) => runs.map((run) => [run, k])));
    const several = found.groups.length;
    this.place.replaceChildren(make("h1", {}, `${count} runs`), make("p", {}, several < count ? `${several} line${several > 1 ? "s" : ""}: runs that differ in their seed alone are one line, their mean with a band.` : "Every run is a line.", count < names.length ? ` ${names.length - count} of the ${names.length} runs are gone, or above the limit of 200.` : ""),
      make("div", { class: "bar" }, filter, toolbar(() => this.curves.forget(), { many: true })), charts,
      make("h2", {}, "Results"), make("div", { class: "wide" }, this.results(found, groupOf)),
      make("h2", {}, "Options"), this.options(found, groupOf));
    this.curves = new Curves(charts, found.groups.map(({ label, runs }) => ({ label: runs.length === 1 && !apart ? `${label} · ${runs[0].split("/").pop()}` : label, runs })), found.t);
  }

  results(found, groupOf) {
    const best = Math.max(...Object.values(found.runs).map((row) => row.score ?? -Infinity));
    const head = ["", "run", "status", "steps", "return", "evaluated", "steps/s", "time", "seed"].map((text, k) => make("th", { class: k > 2 ? "number" : "" }, text));
    return make("table", { id: "results" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, Object.entries(found.runs).map(([name, row]) => make("tr", {},
      make("td", {}, make("i", { class: "key", style: `background:var(${colour(groupOf.get(name))})` })), make("td", {}, make("a", { href: `#/run/${path(name)}` }, name)), make("td", {}, statusDot(row.status), ` ${row.status}`),
      make("td", { class: "number" }, human(row.step)), make("td", { class: "number" }, say(row.return)),
      make("td", { class: `number ${row.score === best ? "best" : ""}` }, say(row.eval), row.eval === null || row.eval_ci95 === null ? null : ` ± ${say(row.eval_ci95)}`),
      make("td", { class: "number" }, human(row.sps)), make("td", { class: "number" }, duration(row.wall_s)), make("td", { class: "number" }, row.seed ?? "–")))));
  }

  options(found, groupOf) {
    const names = Object.keys(found.runs), differing = new Set(found.differing);
    const body = make("tbody", {});
    let all = false, text = "";
    const fill = () => {
      const shown = Object.entries(found.options).filter(([name]) => (all || differing.has(name)) && name.toLowerCase().includes(text));
      body.replaceChildren(...shown.map(([name, values]) => make("tr", { class: differing.has(name) ? "differs" : "" }, make("td", { class: "soft" }, name), values.map((value) => make("td", { class: "number" }, say(value))))));
      if (!shown.length) body.replaceChildren(make("tr", {}, make("td", { colspan: String(names.length + 1) }, differing.size ? "No such option." : "All options are equal.")));
    };
    fill();
    return make("div", {}, make("div", { class: "bar" },
      make("label", {}, make("input", { type: "checkbox", id: "all-options", onchange: (event) => { all = event.target.checked; fill(); } }), `all ${Object.keys(found.options).length}, not only the ${differing.size} that differ`),
      make("input", { type: "search", placeholder: "find an option", "aria-label": "find an option", oninput: (event) => { text = event.target.value.toLowerCase(); fill(); } })),
      make("div", { class: "wide" }, make("table", { id: "diff" }, make("thead", {}, make("tr", {}, make("th", {}), names.map((name) => make("th", { class: "number" }, make("i", { class: "key", style: `background:var(${colour(groupOf.get(name))})` }), ` ${name.split("/").pop()}`)))), body)));
  }
}

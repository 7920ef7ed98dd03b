// run.js: the page of one run: its agent playing, the dashboard's panels, curves, options, videos.

import { toolbar } from "./chart.js";
import { Curves } from "./curves.js";
import { age, ask, duration, human, make, path, repeat, say, statusDot } from "./data.js";
import { pick, picked } from "./list.js";

const POLL = 2000;
const PHASES = { env: "--c2", inference: "--c0", copy: "--c6", learn: "--c3", other: "--c7" };

// The command of a run as it can be typed: without the program's folder, and with quotes where a shell needs them.
const commandLine = ([program = "", ...words]) => [/(^|\/)(shoal|__main__\.py)$/.test(program) ? "shoal" : program, ...words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`))].join(" ");

export class RunPage {
  constructor(place, name) {
    this.name = name;
    const [env, id] = [name.split("/").slice(0, -1).join("/"), name.split("/").pop()];
    this.env = make("span", {}, env);
    this.title = make("h1", {}, this.env, " ", make("span", { class: "soft" }, id));
    this.state = make("span", {});
    const choose = make("button", { onclick: () => { pick(name, !picked.has(name)); choose.textContent = picked.has(name) ? "Chosen ✓" : "Choose to compare"; } }, picked.has(name) ? "Chosen ✓" : "Choose to compare");
    this.bar = make("div", { class: "progress", role: "progressbar", "aria-label": "progress" }, make("i", {}));
    this.facts = make("p", { class: "facts" });
    this.panels = make("div", { class: "panels" });
    this.game = make("section", { class: "card game" });
    this.charts = make("div", { class: "charts" });
    this.main = make("div", {});
    const filter = make("input", { type: "search", placeholder: "find a metric", "aria-label": "find a metric", oninput: () => this.curves.setFilter(filter.value) });
    this.more = make("div", {});
    place.replaceChildren(make("div", { class: "title" }, this.title, this.state, choose), this.bar, this.facts,
      make("div", { class: "first" }, make("div", { class: "left" }, this.main, make("section", { class: "card" }, this.panels)), this.game),
      make("div", { class: "bar" }, make("h2", {}, "Curves"), filter, toolbar(() => this.curves.forget(), { many: false })), this.charts, this.more);
    this.curves = new Curves(this.charts, [{ label: id, runs: [name] }], [], this.main);
    this.showGame({ is_native: true, checkpoints: [0], videos: [] }); // most often there is one: it loads beside the rest
    this.poll = repeat(() => this.load(), POLL);
  }
  close() {
    this.curves.close();
    this.poll.stop();
  }

  async load() {
    const found = await ask("run", { run: this.name }), { row, panels } = found;
    this.state.replaceChildren(statusDot(row.status), ` ${row.status}`);
    this.env.textContent = row.env;
    const share = panels.total > 0 ? Math.min(1, panels.step / panels.total) : 0;
    document.title = `${row.status === "running" ? `${Math.round(100 * share)} % ` : ""}${row.env} ${row.id}`;
    this.bar.firstChild.style.width = `${100 * share}%`;
    this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    const facts = panels.facts, speed = row.status === "running" ? panels.sps : row.sps;
    this.facts.textContent = [`${human(panels.step)} of ${human(panels.total)} steps`, `${human(speed)} steps/s`, `${duration(panels.wall_s)} of training`,
      panels.left_s === null ? "" : `${duration(panels.left_s)} left`, panels.phase ? `phase ${panels.phase}` : "", facts.algo, `${human(facts.num_envs)} envs`,
      facts.backend ? `${facts.backend} x${facts.num_threads}` : "", facts.device, `${human(facts.num_params)} params`, `seed ${facts.seed}`, `started ${age(row.started)}`].filter(Boolean).join(" · ");
    this.showPanels(panels);
    this.showGame(found);
    this.showMore(found);
  }

  showPanels(panels) {
    const bad = new Set(panels.is_bad);
    const table = (title, rows) => (rows.length ? make("div", {}, make("h2", {}, title), make("table", {}, rows)) : null);
    const line = (label, value, more, isBad) => make("tr", { class: isBad ? "bad" : "" }, make("td", { class: "soft" }, label), make("td", { class: "number" }, make("b", {}, isBad ? "NaN" : say(value))), make("td", { class: "soft" }, more ?? ""));
    const ranged = (one) => (one.low === null || one.high === null ? "" : `${say(one.low)} to ${say(one.high)}`);
    const split = Object.entries(panels.split), league = panels.league;
    const machine = [panels.machine.cpu_percent === undefined ? "" : `cpu ${say(panels.machine.cpu_percent)} %`, panels.machine.memory_mb === undefined ? "" : `memory ${say(Math.round(panels.machine.memory_mb))} MB`].filter(Boolean).join(" · ");
    const parts = [
      split.length ? make("div", { class: "time" }, make("h2", {}, "Time"), make("div", { class: "split" }, split.map(([name, share]) => make("i", { title: `${name} ${Math.round(100 * share)} %`, style: `width:${100 * share}%;background:var(${PHASES[name] ?? "--c7"})` }))),
        make("p", {}, split.map(([name, share]) => [make("i", { class: "key", style: `background:var(${PHASES[name] ?? "--c7"})` }), make("span", { class: "entry" }, ` ${name} ${Math.round(100 * share)} %`)])), panels.hint ? make("p", {}, `→ ${panels.hint}`) : null, machine ? make("p", {}, machine) : null) : null,
      table("Episodes", panels.episodes.map((one) => line(one.label, one.value, ranged(one)))),
      table("Learning", panels.learning.map((one) => line(one.label, one.value, "", bad.has(one.key)))),
      table("Return by agent", panels.agents.map((one) => line(one.label, one.value, one.remark))),
      league ? make("div", {}, make("h2", {}, "League"), make("p", {}, [league.rating === null ? "" : `rating ${say(league.rating)} ± ${say(league.rating_ci95)}`, league.win_rate === null ? "" : `wins ${Math.round(100 * league.win_rate)} %`, `${say(league.members)} members`, `${human(league.games)} games`].filter(Boolean).join(" · "))) : null,
    ].filter(Boolean);
    this.panels.replaceChildren(...(parts.length ? parts : [make("p", {}, "No records yet.")]));
  }

  // The frame is made once: its page asks for newer checkpoints by itself. A Python env has its newest video there.
  showGame({ is_native, checkpoints, videos }) {
    const key = !is_native ? `videos ${videos.at(-1)}` : checkpoints.length ? "play" : "none";
    if (this.gameKey === key) return;
    this.gameKey = key;
    const address = `/play/${path(this.name)}`, link = make("a", { href: address, target: "_blank", rel: "noopener" }, "full page ↗");
    const title = (...text) => make("h2", {}, ...text);
    if (key === "play") this.game.replaceChildren(title("The newest checkpoint ", link), ...this.frame(address));
    else if (is_native) this.game.replaceChildren(title("The newest checkpoint"), make("p", {}, "No checkpoint yet. Training saves one every --save.every-s seconds."));
    else if (videos.length) this.game.replaceChildren(title("The newest video"), this.video(videos.at(-1), true));
    else this.game.replaceChildren(title("No video yet"), make("p", {}, "A Python env cannot run in a page. 'shoal eval RUN' records a video, and so does training with --callback 'video(every=1M)'. They are shown here."));
  }

  frame(address) {
    const wait = make("p", {}, "reading the checkpoint …");
    return [wait, make("iframe", { src: address, title: "the newest checkpoint playing", onload: () => wait.remove() })];
  }

  showMore({ options, facts, summary, videos, checkpoints, has_league }) {
    const key = JSON.stringify([options, facts, summary, videos, checkpoints.length > 0]);
    if (this.moreKey === key) return;
    this.moreKey = key;
    const list = (value) => (Array.isArray(value) ? value : []);
    const evaluation = summary.eval && typeof summary.eval === "object" ? summary.eval : null;
    const rows = Object.entries(options), body = make("tbody", {});
    const fill = (text) => body.replaceChildren(...rows.filter(([name, value]) => `${name} ${value}`.toLowerCase().includes(text.toLowerCase())).map(([name, value]) => make("tr", {}, make("td", { class: "soft" }, name), make("td", {}, say(value)))));
    fill("");
    const latest = list(videos).slice().reverse();
    this.more.replaceChildren(...[
      list(summary.diagnosis).length ? [make("h2", {}, "Diagnosis"), list(summary.diagnosis).map((one) => make("p", {}, `${one?.fact ?? ""}. ${one?.advice ?? ""}`))] : [],
      summary.reason ? make("p", {}, `Ended: ${summary.reason}`) : [],
      evaluation ? [make("h2", {}, "Evaluation"), make("p", {}, `${evaluation.mode ?? ""} return ${say(evaluation.return)} ± ${say(evaluation.ci95)} in ${say(evaluation.episodes)} episodes (${say(evaluation.min)} to ${say(evaluation.max)})`)] : [],
      has_league && checkpoints.length ? [make("h2", {}, "League"), make("iframe", { src: `/league/${path(this.name)}`, title: "the league's cross table", class: "tall", loading: "lazy" })] : [],
      latest.length ? [make("h2", {}, "Videos"), make("div", { class: "videos" }, latest.slice(0, 24).map((file) => this.video(file)))] : [],
      make("h2", {}, "Options ", make("input", { type: "search", placeholder: "find an option", "aria-label": "find an option", oninput: (event) => fill(event.target.value) })),
      make("div", { class: "wide options" }, make("table", { id: "own-options" }, body)),
      make("p", { class: "after" }, make("code", {}, commandLine(list(facts.command).map(String)))),
      make("p", {}, [facts.commit ? `commit ${facts.commit}` : "", ...Object.entries(facts.versions ?? {}).map(([name, value]) => `${name} ${value}`), ...Object.entries(facts.machine ?? {}).map(([name, value]) => (name === "cores" ? `cores: ${value}` : String(value)))].filter(Boolean).join(" · ")),
    ].flat(Infinity));
  }
  video(file, plays = false) {
    const address = `/video/${path(this.name)}/${encodeURIComponent(file)}`;
    const shown = /\.(gif|png)$/.test(file) ? make("img", { src: address, alt: file, loading: "lazy" }) : make("video", { src: address, controls: true, muted: true, loop: true, autoplay: plays, preload: "metadata" });
    return make("figure", {}, shown, make("figcaption", { class: "soft" }, file));
  }
}

// app.js: the page: steps a match, draws it, and lets a person pause, replay and play.
"use strict";

const SPEEDS = [1, 2, 3, 5, 8, 10, 15, 20, 30, 60, 120, 240, 1000];
const MOST_KEPT = 64e6; // bytes of snapshots for the replay
const SHOWN_CHOICES = 16;
const NEARLY = 0.9; // of a step's time has passed: it is due, because frames come a little early or late
const BREAK = 900; // ms between two episodes
const TELL = 250; // ms between two updates of the numbers beside the game
const RENEW = 3000; // ms between two questions for a newer checkpoint
const KEPT_EPISODES = 20; // of a page that stays open while a run trains
const $ = (id) => document.getElementById(id);
const ARROWS = ["ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"];
// Sets a text that differs: the browser lays out the page again for equal ones, too.
const write = (id, text) => { const node = typeof id === "string" ? $(id) : id; if (node.textContent !== text) node.textContent = text; };
const short = (x) => (Math.abs(x) >= 1000 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2));

class App {
  constructor(match) {
    const game = match.game;
    Object.assign(this, { match, game, env: match.env, hands: new Controls.Hands(game) });
    this.copy = new Shoal.Env(this.env.wasm, game); // shows the past, and tries moves of boards
    this.mine = -1; // the agent that the person plays
    this.whole = game.seats_of_person ?? [];
    this.paused = false;
    this.isHeld = this.whole.length > 0 && !game.controls.waits; // until the person is there
    this.due = 0; // steps that time has asked for
    Object.assign(this, { pauseUntil: 0, crop: 0, selected: [], history: [], values: [], results: [] });
    this.past = -1; // the step of this episode that is shown; -1: the present
    this.build();
    this.seat(this.whole.length ? this.whole[0] : -1);
    this.begin();
    this.resize();
    new ResizeObserver(() => this.resize()).observe($("stage"));
    this.wake();
    if (game.renew) setInterval(() => this.renew(), RENEW);
  }

  // ---- newer checkpoints: `shoal watch` has them while a run trains ----

  async renew() {
    if (document.hidden || this.coming || this.isAsking) return;
    this.isAsking = true;
    try {
      const { renew, step } = this.game, answer = await fetch(`${renew}&newer=${step}`);
      if (answer.status === 200) this.coming = await Shoal.open({ ...(await answer.json()), renew });
    } catch { // the server has ended: the game goes on
    } finally {
      this.isAsking = false;
    }
  }
  // Takes a newer checkpoint between two episodes, with the episode that would have been next.
  take(match) {
    const seed = String(Math.floor(Math.random() * 1e9));
    Object.assign(this, { match, game: match.game, env: match.env, copy: new Shoal.Env(match.env.wasm, match.game) });
    this.coming = this.trial = null;
    this.tellAbout();
    this.setGreedy(this.isGreedy);
    this.buildSeats();
    match.reset(BigInt(seed));
    $("seed").value = seed;
  }
  tellAbout() {
    const { game } = this, trained = game.run ? `Run ${game.run}, ${Number(game.step).toLocaleString("en")} steps of training.` : "";
    $("about").textContent = [game.about && game.about[0].toUpperCase() + game.about.slice(1), trained].filter(Boolean).join(" ");
  }

  // ---- the page ----

  build() {
    const { game } = this;
    document.querySelector("h1").textContent = game.title;
    document.body.classList.toggle("embedded", self !== top); // what is around it says what it is
    this.tellAbout();
    this.setSpeed(SPEEDS.findIndex((speed) => speed >= game.controls.speed));
    $("seed").value = String(game.seed);
    $("pause").onclick = () => this.setPaused(!this.paused);
    $("one").onclick = () => { this.setPaused(true); this.advance(true); };
    $("speed").oninput = () => this.setSpeed(Number($("speed").value));
    $("restart").onclick = () => this.restart();
    $("seed").onkeydown = (event) => { if (event.key === "Enter") this.restart(); event.stopPropagation(); };
    $("mode").onclick = () => this.setGreedy(!this.isGreedy);
    $("save").onclick = () => this.download();
    $("scrub").oninput = () => this.replay(Number($("scrub").value));
    $("view").hidden = !game.views;
    $("view").onclick = () => this.switchView();
    $("stage").classList.toggle("points", game.controls.points);
    $("game").onclick = (event) => this.click(event);
    $("mode").hidden = $("mind").hidden = !game.players.length;
    this.setGreedy(Boolean(game.greedy));
    this.buildSeats();
    this.buildPad();
    addEventListener("keydown", (event) => this.key(event, true));
    addEventListener("keyup", (event) => this.key(event, false));
    for (const kind of ["keydown", "pointerdown", "input", "click"]) addEventListener(kind, () => this.wake());
    for (const id of ["stage", "pad"]) $(id).addEventListener("pointerdown", () => this.start());
    addEventListener("blur", () => this.hands.clear());
    addEventListener("pagehide", () => this.report());
  }

  // Who may sit in a seat: its trained policy, a robot of the env, the person.
  buildSeats() {
    const { game, match } = this;
    this.policies = match.seats.slice();
    $("seats").replaceChildren(...game.agents.map((name, agent) => {
      const row = document.createElement("tr"), who = document.createElement("select");
      const robots = game.params.find((param) => param.name === `robot_${agent}`)?.choices ?? [];
      const value = this.env.param(`robot_${agent}`)?.[0] ?? 0;
      const option = (text, label) => who.append(new Option(label, text));
      const player = game.players.find((one) => one.agents.includes(agent));
      if (player) option("policy", player.is_opponent ? "opponent" : "policy");
      robots.forEach((robot, k) => { if (k > 0) option(`robot ${k}`, robot); });
      option("person", "you");
      if (!player && game.agents.length > 1) option("nobody", "nobody");
      who.value = player && !value ? "policy" : value ? `robot ${value}` : this.whole[0] === agent ? "person" : "nobody";
      if (!who.value) who.value = "person";
      who.onchange = () => this.choose(agent, who.value);
      who.setAttribute("aria-label", `who plays ${name}`);
      for (const part of [game.agents.length > 1 ? name.replace("_", " ") : "agent", who, "0"]) {
        const cell = document.createElement("td");
        cell.append(part);
        row.append(cell);
      }
      return row;
    }));
  }

  buildPad() {
    const { game } = this, pad = $("pad"), place = (key) => (ARROWS.indexOf(key) + 99) % 99; // arrows as on a keyboard
    const keys = Object.entries(game.controls.keys).sort(([a], [b]) => place(a) - place(b));
    const buttons = keys.map(([key, { label }]) => {
      const button = document.createElement("button");
      button.append(Controls.nameOf(key));
      const small = document.createElement("small");
      small.textContent = label.length > 18 ? `${label.slice(0, 17)}…` : label;
      button.append(small);
      button.onpointerdown = (event) => { event.preventDefault(); this.hands.press(key); };
      button.onpointerup = button.onpointercancel = button.onpointerleave = () => this.hands.release(key);
      return button;
    });
    if (game.mask && game.controls.points) { // what no click can mean, such as a pass
      const pass = document.createElement("button");
      pass.append("pass");
      pass.onclick = () => this.pass();
      buttons.push(pass);
    }
    pad.replaceChildren(...buttons);
    const lines = keys.map(([key, { label }]) => [Controls.nameOf(key), label]);
    if (game.controls.points) lines.unshift(["click", "on the board to move;"]);
    const own = [["P", "pause"], ["R", "restart"], ["N", "new seed"], ["+ −", "speed"], ["T", "take a seat"]];
    if (game.views) own.push(["V", "view"], ["Q E", "turn the graph"], ["B", "the other side's graph"]);
    const list = (entries) => entries.flatMap(([key, label]) => {
      const pair = document.createElement("span"), kbd = document.createElement("kbd");
      kbd.textContent = key;
      pair.append(kbd, ` ${label}`);
      return [pair, " "];
    });
    $("keys").replaceChildren(...list(lines), document.createElement("br"), ...list(own));
    $("legend").textContent = game.legend ?? "";
  }

  setPaused(paused) {
    this.paused = paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    $("pause").textContent = paused ? "Play" : "Pause";
    if (paused) { this.tell(); return; }
    this.past = -1; // back to the present
    this.start();
    this.before = performance.now();
    this.show();
    this.wake();
  }
  setSpeed(at) {
    this.speed = SPEEDS[Math.min(Math.max(at, 0), SPEEDS.length - 1)];
    $("speed").value = String(SPEEDS.indexOf(this.speed));
    const scale = this.game.seconds_per_step ? ` (${short(this.speed * this.game.seconds_per_step)}×)` : "";
    $("rate").textContent = `${this.speed}/s${scale}`;
    this.wake();
  }
  setGreedy(greedy) {
    this.isGreedy = greedy;
    this.match.greedy = this.match.brains.map((_, k) => (this.game.players[k].is_opponent ? this.game.players[k].greedy : greedy));
    $("mode").setAttribute("aria-pressed", String(greedy));
    $("mode").textContent = greedy ? "greedy" : "sampled";
  }
  switchView() {
    this.crop = (this.crop + 1) % this.game.views.length;
    this.resize();
  }

  // ---- seats ----

  choose(agent, who) {
    const robot = this.env.param(`robot_${agent}`);
    if (robot) robot[0] = who.startsWith("robot") ? Number(who.slice(6)) : 0;
    this.match.seats[agent] = who === "policy" ? this.policies[agent] : null;
    if (who === "policy") this.policies[agent]?.clear(agent);
    if (who === "person") {
      if (this.mine >= 0 && this.mine !== agent) this.leave(this.mine);
      this.seat(agent);
    } else if (this.mine === agent) {
      this.seat(-1);
    }
    if (robot) this.restart(); // a robot's memory is in the env's state
  }
  leave(agent) {
    const who = this.policies[agent] ? "policy" : "nobody";
    this.match.seats[agent] = this.policies[agent];
    this.whoIn(agent).value = who;
  }
  whoIn(agent) { return $("seats").rows[agent].querySelector("select"); }
  seat(agent) {
    this.mine = agent;
    this.gap = self !== top && agent < 0 ? 30 : 0; // ms between frames: half of them leave a training the time
    this.selected = [];
    this.hands.clear();
    if (agent >= 0) {
      this.match.seats[agent] = null;
      this.whoIn(agent).value = "person";
      if (this.env.param("draw_side")) this.look("draw_side", agent);
    }
    $("pad").classList.toggle("on", agent >= 0);
  }

  // ---- keys and clicks ----

  key(event, isDown) {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const code = event.code;
    if (isDown && this.isHeld && !/^(Shift|Control|Alt|Meta|Tab|Esc)/.test(code)) {
      this.start();
      if (code === "KeyP" || code === "Space") event.preventDefault();
      if (!this.hands.knows(code)) return;
    }
    if (this.mine >= 0 && this.hands.knows(code)) {
      event.preventDefault();
      if (!isDown) this.hands.release(code);
      else if (event.repeat && this.game.controls.waits) this.hands.repeat(code);
      else this.hands.press(code);
      return;
    }
    const commands = {
      KeyP: () => this.setPaused(!this.paused),
      Space: () => this.setPaused(!this.paused),
      KeyR: () => this.restart(),
      KeyN: () => { $("seed").value = String(Math.floor(Math.random() * 1e9)); this.restart(); },
      KeyT: () => this.takeSeat(),
      Equal: () => this.setSpeed(SPEEDS.indexOf(this.speed) + 1),
      NumpadAdd: () => this.setSpeed(SPEEDS.indexOf(this.speed) + 1),
      Minus: () => this.setSpeed(SPEEDS.indexOf(this.speed) - 1),
      NumpadSubtract: () => this.setSpeed(SPEEDS.indexOf(this.speed) - 1),
      KeyV: () => this.game.views && this.switchView(),
      KeyQ: () => this.turn(-5),
      KeyE: () => this.turn(5),
      KeyB: () => this.env.param("draw_side") && this.look("draw_side", 1 - this.env.param("draw_side")[0]),
    };
    if (!isDown || !(code in commands) || (event.target.tagName === "BUTTON" && code === "Space")) return;
    event.preventDefault();
    commands[code]();
  }
  takeSeat() {
    const agent = (this.mine + 1) % (this.game.agents.length + 1) === this.game.agents.length ? -1 : this.mine + 1;
    if (this.mine >= 0) this.leave(this.mine);
    if (agent < 0) { this.seat(-1); return; }
    this.whoIn(agent).value = "person";
    this.choose(agent, "person");
  }
  // A param that changes the picture alone.
  look(name, value) {
    for (const env of [this.env, this.copy]) env.param(name)[0] = value;
    this.show();
  }
  turn(degrees) {
    const yaw = this.env.param("draw_yaw");
    if (yaw) this.look("draw_yaw", ((yaw[0] + degrees + 540) % 360) - 180);
  }

  // A click on a board: the moves that it can mean. If several, the next click decides.
  click(event) {
    if (this.mine < 0) { this.banner("press T to take a seat"); return; }
    if (!this.game.controls.points || !this.isMyTurn()) return;
    const canvas = $("game"), box = canvas.getBoundingClientRect();
    const at = View.place(this.picture.view, box.width, box.height, this.cropped());
    const point = [(event.clientX - box.left - at.x) / at.sx, (event.clientY - box.top - at.y) / at.sy];
    const board = Math.max(...this.picture.view.map(Math.abs)) || 1;
    const places = Controls.findPlaces(this.match, this.scratch(), this.mine);
    // pieces that drop into columns: anywhere in the column is meant
    const drops = this.game.mask <= 16 && new Set(places.map((place) => place.at[0]?.[0])).size === places.length;
    const far = (place) => (drops ? Math.abs((place.at[0]?.[0] ?? Infinity) - point[0]) : Math.min(Controls.nearest(place.at, point), Controls.nearest(place.from, point) + 0.01 * board)); // what appears counts more
    const rank = (from) => {
      const best = Math.min(...from.map(far));
      return from.filter((place) => far(place) < best + 1e-3 * board);
    };
    const known = this.selected.length ? places.filter((place) => this.selected.includes(place.action)) : places;
    if (!known.length) return;
    let meant = rank(known);
    if (meant.length === known.length && this.selected.length) meant = rank(places); // another piece
    if (meant.length === 1) {
      this.selected = [];
      this.move(meant[0].action);
    } else {
      this.selected = meant.map((place) => place.action);
      this.marks = meant.flatMap((place) => place.at);
      this.banner("choose where to");
      this.show();
    }
  }
  // The env for trying moves: no robot replies in it.
  scratch() {
    this.trial ??= new Shoal.Env(this.env.wasm, this.game);
    this.game.agents.forEach((_, agent) => { const robot = this.trial.param(`robot_${agent}`); if (robot) robot[0] = 0; });
    return this.trial;
  }
  pass() {
    const allowed = Controls.allowedOf(this.env.mask(this.mine)), last = this.game.mask - 1;
    if (this.isMyTurn() && allowed.includes(last)) this.move(last);
    else this.banner("a pass is not allowed now");
  }
  move(action) {
    this.marks = null;
    this.banner("");
    this.planned = [action];
    if (this.paused) this.setPaused(false);
    [this.due, this.isWaiting] = [0, false];
    this.advance(true);
    this.wake();
  }
  isMyTurn() {
    const mask = this.mine >= 0 ? this.env.mask(this.mine) : null;
    return this.mine >= 0 && !this.env.ended && this.env.alive[this.mine] === 1 && (!mask || Controls.allowedOf(mask).length > 1);
  }

  // ---- time ----

  restart() {
    let seed = $("seed").value.trim();
    if (!/^\d{1,18}$/.test(seed)) { this.banner("a seed is a whole number"); return; }
    this.match.reset(BigInt(seed));
    this.begin();
  }
  begin() {
    this.history = [];
    this.values = [];
    this.selected = [];
    this.marks = null;
    this.pauseUntil = 0;
    this.remember();
    this.invite();
    this.show();
    this.wake();
  }
  // `shoal play`: a still picture until the person is there.
  invite() {
    $("banner").classList.toggle("start", this.isHeld);
    this.banner(this.isHeld ? "press a key or tap to start" : "");
  }
  start() {
    if (!this.isHeld) return;
    this.isHeld = false;
    this.before = performance.now();
    this.invite();
    this.wake();
  }
  remember() {
    if (this.history.length * this.env.wasm.web_record_bytes() < MOST_KEPT) this.history.push(this.env.save());
    this.past = -1;
  }

  // Frames are asked for when there is something to draw: a page that only waits takes no time.
  wake() {
    clearTimeout(this.timer);
    this.asked ||= requestAnimationFrame((now) => this.frame(now));
  }
  frame(now) {
    this.asked = 0;
    const runs = () => !this.paused && !this.isHeld, elapsed = Math.max(0, now - (this.before ?? now));
    let waits = false;
    this.before = now;
    if (runs() && now >= this.pauseUntil) {
      const asked = (Math.min(elapsed, 200 + 1000 / this.speed) * this.speed) / 1000;
      this.due = this.isWaiting ? 1 : Math.min(this.due + asked, this.speed); // a key counts at once, the reply comes in its time
      const until = performance.now() + 12; // ms of a frame that steps may take
      let stepped = false;
      while (this.due >= NEARLY && performance.now() < until && this.pauseUntil <= now && !waits) {
        this.due -= 1;
        waits = !this.advance(false);
        stepped ||= !waits;
      }
      this.isWaiting = waits;
      if (stepped) this.show();
    }
    const next = this.pauseUntil > now ? this.pauseUntil - now : waits ? TELL : ((1 - this.due) * 1000) / this.speed;
    if (now - (this.told ?? 0) > TELL || next > TELL) { this.told = now; this.tell(); }
    const wait = Math.max(next, this.gap);
    if (!runs()) return; // what changes that wakes it
    if (wait < 24) this.wake();
    else this.timer = setTimeout(() => this.wake(), wait - 12); // the next frame then comes in time
  }

  // One step, or the next episode. Returns false where the game waits for the person.
  advance(isAsked) {
    if (isAsked) this.start();
    if (this.env.ended) {
      if (this.coming && this.mine < 0) this.take(this.coming); // not from under a person
      else this.match.next();
      this.begin();
      return true;
    }
    const given = new Map();
    if (this.mine >= 0) {
      const action = this.myAction(isAsked);
      if (!action) return false;
      given.set(this.mine, action);
    }
    const ended = this.match.step(given, (agent) => this.rest(agent));
    this.remember();
    const watched = this.match.thoughts.get(this.watched()) ?? [...this.match.thoughts.values()][0];
    if (watched) this.values.push(watched.value);
    if (ended) this.finish();
    if (isAsked) { this.show(); this.tell(); }
    return true;
  }
  myAction(isAsked) {
    if (this.planned) { const planned = this.planned; this.planned = null; return planned; }
    const mask = this.env.mask(this.mine), { waits } = this.game.controls;
    const allowed = Controls.allowedOf(mask), isOne = this.game.action.kind === "discrete";
    if (!this.isMyTurn()) { this.hands.pressed.length = 0; return this.rest(this.mine); }
    if (!waits) return this.hands.now();
    const action = this.hands.take() ?? (isAsked && this.game.controls.choices.every((one) => one.rest !== null) ? this.hands.values([]) : null);
    if (!action) return null;
    if (mask && isOne && !allowed.includes(action[0])) { this.banner("this action is not allowed now"); return null; }
    return action;
  }
  // What an agent does whom nobody plays: nothing, if the mask allows it.
  rest(agent) {
    const { controls, action } = this.game, mask = this.env.mask(agent), values = new Array(action.size).fill(0);
    for (const number of controls.numbers) values[number.column] = number.rest;
    for (const choice of controls.choices) values[choice.column] += choice.weight * (choice.rest ?? 0);
    const allowed = Controls.allowedOf(mask);
    if (mask && action.kind === "discrete" && !allowed.includes(values[0])) values[0] = allowed[0] ?? 0;
    return values;
  }
  finish() {
    const returns = Array.from(this.env.finalReturns, short).join(" : ");
    const stats = this.game.stats.map((name, k) => `${name.replaceAll("_", " ")} ${short(this.env.stats[k])}`);
    if (this.game.renew) this.match.episodes.splice(0, this.match.episodes.length - KEPT_EPISODES);
    this.results.push({ returns: Array.from(this.env.finalReturns), length: this.env.finalLength });
    this.banner(`episode over: return ${returns} after ${this.env.finalLength} steps`);
    const all = this.results.map((one) => one.returns.reduce((a, b) => a + b, 0) / one.returns.length);
    const mean = all.reduce((a, b) => a + b, 0) / all.length;
    $("episodes").textContent = `${all.length} played, mean return ${short(mean)}. Last: ${[returns, ...stats].join(", ")}`;
    this.pauseUntil = performance.now() + (this.speed >= 120 && this.mine < 0 ? 0 : BREAK);
    this.report();
  }

  // ---- pictures ----

  cropped() { return this.game.views?.[this.crop].rect ?? null; }
  resize() {
    this.picture ??= this.env.draw();
    const [left, top, right, bottom] = this.cropped() ?? this.picture.view, canvas = $("game");
    const ratio = Math.abs((bottom - top) / (right - left)) || 1;
    const width = Math.min($("stage").clientWidth, (innerHeight * (innerWidth > 820 ? 0.78 : 0.6)) / ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${width * ratio}px`;
    canvas.style.margin = "0 auto";
    canvas.width = Math.max(1, Math.round(width * devicePixelRatio));
    canvas.height = Math.max(1, Math.round(width * ratio * devicePixelRatio));
    canvas.shown = null; // a new size empties it
    const trace = $("trace");
    [trace.width, trace.height] = [trace.clientWidth, trace.clientHeight].map((size) => Math.round(size * devicePixelRatio));
    if (this.values.length) this.drawTrace();
    this.show();
  }
  show() {
    if (!this.game.has_draw) { this.banner("this env draws no picture"); return; }
    this.picture = (this.past >= 0 ? this.copy : this.env).draw();
    if (this.marks) {
      const size = 0.015 * Math.abs(this.picture.view[2] - this.picture.view[0]);
      this.picture.items.push(...this.marks.map(([x, y]) => ({ kind: 1, color: 0xffc857, x, y, a: size })));
    }
    View.paint($("game"), this.picture, this.cropped());
  }
  replay(step) {
    this.setPaused(true);
    this.past = step === this.history.length - 1 ? -1 : step;
    this.copy.load(this.history[step]);
    this.show();
    this.tell();
  }
  banner(text) { write("banner", text); }

  watched() {
    const agents = [...this.match.thoughts.keys()];
    return agents.find((agent) => this.match.thoughts.get(agent).isFree) ?? agents[0] ?? -1; // on turn, if there are turns
  }

  // The numbers beside the game.
  tell() {
    const returns = this.env.ended ? this.env.finalReturns : this.env.returns;
    this.game.agents.forEach((_, agent) => {
      write($("seats").rows[agent].cells[2], short(returns[agent]) + (this.env.alive[agent] ? "" : " out"));
    });
    // not at every step: the browser lays out the page again
    const scrub = $("scrub"), last = this.history.length - 1;
    if (scrub.max !== String(last)) scrub.max = String(last);
    scrub.value = String(this.past >= 0 ? this.past : last);
    write("step", String(this.past >= 0 ? this.past : this.env.tick));
    const agent = this.watched(), thought = this.match.thoughts.get(agent);
    if (!thought) return;
    const name = this.game.agents.length > 1 ? ` of ${this.game.agents[agent].replace("_", " ")}` : "";
    write("whose", `Action${name}`);
    write("worth", `Value ${short(thought.value)}`);
    this.tellChances(thought);
    this.drawTrace();
  }
  tellChances(thought) {
    const { choices, numbers } = this.game.controls, rows = [];
    let part = 0, number = 0;
    for (const one of thought.parts) {
      if (one.chances) {
        const labels = choices.length === thought.parts.length ? choices[part++].labels : this.labels(one.chances.length);
        const order = one.chances.map((_, k) => k);
        if (order.length > SHOWN_CHOICES) order.sort((a, b) => one.chances[b] - one.chances[a]);
        for (const k of order.slice(0, SHOWN_CHOICES)) rows.push([labels[k] ?? String(k), one.chances[k], k === one.choice, `${Math.round(100 * one.chances[k])} %`]);
      } else {
        const { name, low, high } = numbers[number++], range = Math.min(high, 1e3) - Math.max(low, -1e3);
        rows.push([name, (one.number - Math.max(low, -1e3)) / range, true, short(one.number)]);
      }
    }
    const box = $("chances");
    while (box.children.length > rows.length) box.lastChild.remove();
    while (box.children.length < rows.length) {
      const row = document.createElement("div");
      row.className = "chance";
      row.append(document.createElement("span"), document.createElement("div"), document.createElement("span"));
      row.children[1].append(document.createElement("i"));
      box.append(row);
    }
    rows.forEach(([label, share, isChosen, text], k) => {
      const row = box.children[k], [name, bar, value] = row.children;
      row.classList.toggle("chosen", isChosen);
      if (name.textContent !== label) { name.textContent = label; name.title = label; }
      const wide = `${Math.round(100 * Math.min(Math.max(share, 0), 1))}%`;
      if (bar.firstChild.style.width !== wide) bar.firstChild.style.width = wide;
      write(value, text);
    });
  }
  // Names of a composed action's choices: "left thrust".
  labels(count) {
    this.named ??= Array.from({ length: count }, (_, action) => {
      const words = this.game.controls.choices.map(({ weight, labels }) => labels[Math.floor(action / weight) % labels.length]);
      const said = words.filter((word) => word !== "nothing" && word !== "none");
      return said.join(" ") || words[0];
    });
    return this.named;
  }
  drawTrace() {
    const canvas = $("trace"), context = canvas.getContext("2d"), recent = this.values.slice(-240);
    const { width, height } = canvas;
    context.clearRect(0, 0, width, height);
    const low = Math.min(...recent), span = Math.max(...recent) - low || 1;
    context.strokeStyle = "#ffc857";
    context.lineWidth = 1.5 * devicePixelRatio;
    context.beginPath();
    recent.forEach((value, k) => context.lineTo((k / 239) * width, height - 3 - ((value - low) / span) * (height - 6)));
    context.stroke();
  }

  // ---- the record ----

  record() {
    const { game } = this, episodes = this.match.episodes.filter((one) => one.actions.length);
    const seats = game.agents.map((_, agent) => this.whoIn(agent).selectedOptions[0]?.text ?? "nobody");
    return { format: "shoal-record 1", env: game.env_name ?? game.env, options: game.options ?? {}, agents: game.agents, person: this.mine, seats, run: game.run ?? null, episodes };
  }
  download() {
    const file = new Blob([JSON.stringify(this.record())], { type: "application/json" });
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: `${this.game.env}.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  // `shoal play` keeps the session: it serves the page and takes the record.
  report() {
    if (!this.game.report) return;
    fetch(this.game.report, { method: "POST", body: JSON.stringify(this.record()), keepalive: false }).catch(() => this.banner("shoal play has ended: the session is no longer recorded"));
  }
}

async function main() {
  const game = JSON.parse($("data").textContent);
  try {
    window.app = new App(await Shoal.open(game));
  } catch (error) {
    $("banner").textContent = `this browser cannot run the game: ${error.message}`;
    throw error;
  }
}
main();

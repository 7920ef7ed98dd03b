// engine.js: an env and the networks of its players in WebAssembly. Needs no page: the tests run it in Node.
//
//   const match = await Shoal.open(game);   game: the data of shoal/web/game.py
//   match.reset(seed); match.step();
"use strict";

const Shoal = (() => {
  const DISABLED = 2; // autoreset of native/core/module.c: an ended episode waits for next()
  const NEVER = -1e9;
  const WORD = 4; // bytes of an int or a float

  const { bytesOf, unpacked } = typeof module === "undefined" ? Packed : require("./packed.js");

  // A small generator of random numbers for sampled actions (mulberry32).
  function randomFrom(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  // One env: a batch of web.c. Views of its memory are made anew each time, because memory that grows moves.
  class Env {
    constructor(wasm, game, count = 1) {
      const wrap = game.wrap;
      this.wasm = wasm;
      this.game = game;
      this.agents = game.agents.length;
      this.batch = wasm.web_open(
        count, DISABLED, game.rules ? game.rules.count : 0, +wrap.wraps, wrap.stack, wrap.chunk, wrap.skip,
        wrap.time_limit * wrap.skip, +wrap.draws, +wrap.changes_obs, wrap.sticky, wrap.obs_noise,
        wrap.reward_scale, wrap.reward_clip,
      );
      const values = bytesOf(game.values), size = wasm.web_params_bytes();
      if (values.length !== size) throw new Error(`params of ${values.length} bytes, expected ${size}`);
      for (let k = 0; k < (game.rules ? count : 1); k++) this.bytes(wasm.web_params(this.batch) + k * size, size).set(values);
      if (game.rules) {
        const [rules, numbers] = [game.rules.rules, game.rules.values].map((text) => this.keep(bytesOf(text)));
        wasm.web_set_rules(this.batch, rules, numbers);
      }
      this.record = wasm.web_alloc(wasm.web_record_bytes());
      this.canvas = wasm.web_canvas(4096, 8192);
    }

    bytes(at, count) { return new Uint8Array(this.wasm.memory.buffer, at, count); }
    ints(at, count) { return new Int32Array(this.wasm.memory.buffer, at, count); }
    floats(at, count) { return new Float32Array(this.wasm.memory.buffer, at, count); }

    // Copies bytes into the module's memory and returns their place.
    keep(data) {
      const at = this.wasm.web_alloc(data.length);
      this.bytes(at, data.length).set(data);
      return at;
    }

    reset(seed) {
      const whole = BigInt(seed);
      this.wasm.web_reset(this.batch, Number(whole & 0xffffffffn), Number((whole >> 32n) & 0xffffffffn));
    }
    next() { this.wasm.web_next(this.batch); }
    step() { return this.wasm.web_step(this.batch); }

    field(name, count, kind) { return this[kind](this.wasm[`web_${name}`](this.batch), count); }
    get rewards() { return this.field("rewards", this.agents, "floats"); }
    get returns() { return this.field("returns", this.agents, "floats"); }
    get alive() { return this.field("alive", this.agents, "bytes"); }
    get terminated() { return this.field("terminated", this.agents, "bytes"); }
    get truncated() { return this.field("truncated", this.agents, "bytes"); }
    get ended() { return this.field("ended", 1, "bytes")[0] !== 0; }
    get tick() { return this.field("tick", 1, "ints")[0]; }
    get stats() { return this.field("final_stats", this.game.stats.length, "floats"); }
    get finalReturns() { return this.field("final_return", this.agents, "floats"); }
    get finalLength() { return this.field("final_length", this.agents, "ints").reduce((a, b) => Math.max(a, b), 0); }

    obs(agent) {
      const { size, bytes } = this.game.obs, at = this.wasm.web_obs(this.batch);
      return bytes ? this.bytes(at + agent * size, size) : this.floats(at + agent * size * WORD, size);
    }
    // Which choices are allowed; null: all.
    mask(agent) {
      const size = this.game.mask;
      return size ? this.bytes(this.wasm.web_masks(this.batch) + agent * size, size) : null;
    }
    act(agent, values) {
      const { size, floats } = this.game.action, at = this.wasm.web_actions(this.batch) + agent * size * WORD;
      (floats ? this.floats(at, size) : this.ints(at, size)).set(values);
    }
    actions() {
      const { size, floats } = this.game.action, at = this.wasm.web_actions(this.batch), count = size * this.agents;
      return Array.from(floats ? this.floats(at, count) : this.ints(at, count));
    }

    param(name) {
      const param = this.game.params.find((one) => one.name === name);
      if (!param) return null;
      const at = this.wasm.web_params(this.batch) + param.offset;
      return param.kind === "int" ? this.ints(at, 1) : this.floats(at, 1);
    }

    // Everything that the env's future depends on, as bytes.
    save() {
      this.wasm.web_save(this.batch, 0, this.record);
      return this.bytes(this.record, this.wasm.web_record_bytes()).slice();
    }
    load(record) {
      this.bytes(this.record, record.length).set(record);
      this.wasm.web_load(this.batch, 0, this.record);
    }

    // The display list (native/core/draw.h): {view, background, items}; an item's text or points only where it has some.
    // An item that is as in the picture before is the same object: view.js draws what is new.
    draw() {
      for (;;) {
        this.wasm.web_draw(this.batch, 0, this.canvas);
        const head = this.ints(this.canvas, 11);
        if (head[5] <= head[6] && head[9] <= head[10]) break; // counts within capacity
        this.canvas = this.wasm.web_canvas(2 * Math.max(head[5], head[6]), 2 * Math.max(head[9], head[10]));
      }
      const head = this.ints(this.canvas, 11), view = Array.from(this.floats(this.canvas, 4)), size = 13; // words of an item
      const count = head[5], ints = this.ints(head[7], count * size), floats = this.floats(head[7], count * size);
      const text = this.bytes(head[7], count * 52), points = this.floats(head[8], 2 * head[9]), items = [];
      const before = this.drawn ?? { ints: [], items };
      for (let k = 0; k < count; k++) {
        const at = size * k, kind = ints[at];
        let equal = 0;
        while (equal < size && ints[at + equal] === before.ints[at + equal]) equal++;
        if (equal === size && kind !== 4) { items.push(before.items[k]); continue; }
        const item = { kind, color: ints[at + 1] & 0xffffff, x: floats[at + 2], y: floats[at + 3], a: floats[at + 4], b: floats[at + 5], c: floats[at + 6] };
        if (kind === 3) {
          item.text = "";
          for (let c = 52 * k + 28; c < 52 * k + 52 && text[c]; c++) item.text += String.fromCharCode(text[c]);
        } else if (kind === 4) {
          item.points = Array.from(points.subarray(2 * item.a, 2 * (item.a + item.b)));
          if (equal === size && !item.points.every((value, p) => value === before.items[k].points[p])) equal = 0;
        }
        items.push(equal === size ? before.items[k] : item);
      }
      this.drawn = { ints: ints.slice(), items };
      return { view, background: head[4] & 0xffffff, items: items.slice() };
    }

    // The env's curves as an agent knows them, by name: x, y, time and value of every point.
    curves(agent) {
      const shapes = Object.entries(this.game.curves);
      const total = shapes.reduce((sum, [, [count, points]]) => sum + count * points * 4, 0);
      this.curveRoom ??= this.wasm.web_alloc(total * WORD);
      this.wasm.web_curves(this.batch, 0, agent, this.curveRoom);
      const all = this.floats(this.curveRoom, total), found = {};
      let at = 0;
      for (const [name, [count, points]] of shapes) {
        found[name] = Array.from(all.subarray(at, (at += count * points * 4)));
      }
      return found;
    }
  }

  // Numbers of two bytes, from all lower bytes and then all upper ones.
  function interleaved(bytes) {
    const count = bytes.length / 2;
    return Uint8Array.from(bytes, (_, k) => bytes[(k >> 1) + (k & 1) * count]);
  }

  // A network of native/core/policy.h, with a recurrent state for each agent that it plays.
  class Brain {
    constructor(env, facts, weights) {
      const net = facts.network, wasm = env.wasm;
      this.env = env;
      this.net = net;
      this.head = facts.head;
      this.code = env.keep(bytesOf(net.code));
      this.count = bytesOf(net.code).length / (12 * WORD);
      this.memory = wasm.web_alloc(net.size * WORD);
      // the blob: floats, the factors of all columns, the matrices
      const isNarrow = net.bits === 16, columns = isNarrow ? net.shapes.reduce((sum, [, count]) => sum + count, 0) : 0;
      let scales = env.keep(weights.subarray(net.floats * WORD, (net.floats + columns) * WORD)), to = this.memory;
      let data = weights.subarray((net.floats + columns) * WORD);
      if (isNarrow) data = interleaved(data);
      for (const [rows, count] of net.shapes) {
        const size = rows * count * (net.bits / 8);
        if (isNarrow) wasm.web_widen(env.keep(data.subarray(0, size)), to, rows, count, scales);
        else env.bytes(to, size).set(data.subarray(0, size));
        scales += count * WORD;
        to += rows * count * WORD;
        data = data.subarray(size);
      }
      env.bytes(to, net.floats * WORD).set(weights.subarray(0, net.floats * WORD));
      this.states = new Map();
    }

    clear(agent) {
      if (this.states.has(agent)) this.env.floats(this.states.get(agent), this.net.state_size).fill(0);
    }

    // {logits, value} for an agent's observation. Forbidden choices have the logit NEVER.
    think(agent) {
      if (!this.states.has(agent)) this.states.set(agent, this.env.wasm.web_alloc(this.net.state_size * WORD));
      this.env.wasm.web_think(this.env.batch, agent, this.code, this.count, this.memory, this.states.get(agent));
      const logits = this.env.floats(this.memory + this.net.logits * WORD, this.net.num_logits).slice();
      const mask = this.env.mask(agent);
      if (mask && mask.length === this.head.choices) mask.forEach((allowed, k) => { if (!allowed) logits[k] = NEVER; });
      return { logits, value: this.env.floats(this.memory + this.net.value * WORD, 1)[0] };
    }

    // The values of an action, and what they were chosen from: probabilities of choices, mean and deviation of numbers.
    decide(agent, greedy, random) {
      const { logits, value } = this.think(agent), head = this.head;
      const values = new Array(head.size).fill(0), parts = [];
      for (const part of head.parts) {
        if (part.count) {
          const own = logits.subarray(part.logits, part.logits + part.count);
          const chances = "epsilon" in head ? explore(own, greedy ? 0 : head.epsilon) : softmax(own);
          values[part.column] = greedy ? largest(own) : pick(chances, random());
          parts.push({ chances, choice: values[part.column] });
        } else {
          for (let k = 0; k < part.size; k++) {
            const mean = logits[part.logits + k];
            const std = Math.exp(Math.min(4, Math.max(-20, logits[head.stds + part.stds + k])));
            const column = part.column + k;
            const unit = greedy ? mean : mean + std * normal(random);
            values[column] = toBox(head, column, unit);
            parts.push({ number: values[column], mean: toBox(head, column, mean), std: std * head.scale[column] });
          }
        }
      }
      const mask = this.env.mask(agent), isFree = !mask || mask.reduce((sum, one) => sum + one, 0) > head.parts.length;
      return { values, value, parts, logits, isFree };
    }
  }

  function toBox(head, column, unit) {
    const inside = head.squash ? Math.tanh(unit) : unit;
    const scaled = Math.fround(Math.fround(Math.fround(inside) * head.scale[column]) + head.center[column]);
    return Math.min(Math.max(scaled, head.low[column]), head.high[column]);
  }

  function largest(values) {
    let best = 0;
    for (let k = 1; k < values.length; k++) if (values[k] > values[best]) best = k;
    return best;
  }
  function softmax(logits) {
    const top = Math.max(...logits), weights = Array.from(logits, (x) => Math.exp(x - top));
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((x) => x / total);
  }
  function explore(values, epsilon) {
    const allowed = Array.from(values, (x) => (x > NEVER ? 1 : 0)), count = allowed.reduce((a, b) => a + b, 0);
    const best = largest(values);
    return allowed.map((one, k) => (epsilon * one) / count + (k === best ? 1 - epsilon : 0));
  }
  function pick(chances, u) {
    let last = 0;
    for (let k = 0; k < chances.length; k++) {
      if (chances[k] > 0) last = k;
      u -= chances[k];
      if (u < 0 && chances[k] > 0) return k;
    }
    return last;
  }
  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  // An env with its players. `seats[agent]`: a Brain, or null for a person, a robot of the env, or nobody.
  class Match {
    constructor(env, brains, game) {
      this.env = env;
      this.game = game;
      this.brains = brains;
      this.greedy = brains.map((_, k) => game.players[k].greedy);
      this.seats = game.agents.map((_, agent) => brains.find((_, k) => game.players[k].agents.includes(agent)) ?? null);
      this.episodes = [];
      this.reset(game.seed);
    }

    reset(seed) {
      this.seed = seed;
      this.random = randomFrom(Number(BigInt(seed) & 0xffffffffn));
      this.env.reset(seed);
      this.begin(String(seed));
    }
    next() {
      this.env.next();
      this.begin(null);
    }
    // `seed`: null where the random stream of the episode before continues.
    begin(seed) {
      const robots = this.game.params.filter((param) => param.name.startsWith("robot_"));
      const params = Object.fromEntries(robots.map(({ name }) => [name, this.env.param(name)[0]]));
      this.episodes.push({ seed, params, actions: [] });
      for (const brain of this.brains) for (const agent of brain.states.keys()) brain.clear(agent);
      this.thoughts = new Map();
    }

    // One step. `given`: the actions of agents that a person plays, by agent; others without a Brain do what `rest` says.
    step(given = new Map(), rest = () => new Array(this.game.action.size).fill(0)) {
      const env = this.env, alive = Array.from(env.alive);
      this.thoughts = new Map();
      for (let agent = 0; agent < env.agents; agent++) {
        const brain = this.seats[agent];
        if (given.has(agent)) {
          env.act(agent, given.get(agent));
        } else if (brain) {
          const thought = brain.decide(agent, this.greedy[this.brains.indexOf(brain)], this.random);
          this.thoughts.set(agent, thought);
          env.act(agent, thought.values);
        } else {
          env.act(agent, rest(agent));
        }
      }
      const episode = this.episodes[this.episodes.length - 1];
      episode.actions.push(env.actions());
      env.step();
      const now = env.alive, [terminated, truncated] = [env.terminated, env.truncated];
      for (let agent = 0; agent < env.agents; agent++) {
        if (terminated[agent] || truncated[agent] || !alive[agent] || !now[agent]) this.seats[agent]?.clear(agent);
      }
      if (env.ended) {
        episode.returns = Array.from(env.finalReturns);
        episode.length = env.finalLength;
      }
      return env.ended;
    }
  }

  // The module, its env and its players. Several matches may be open at once.
  async function open(game) {
    const { instance } = await WebAssembly.instantiate(await unpacked(game.wasm), {});
    const env = new Env(instance.exports, game), brains = [];
    for (const player of game.players) brains.push(new Brain(env, player, await unpacked(player.network.weights)));
    return new Match(env, brains, game);
  }

  // The hash of tests/golden.json of a bare module: 64 envs, 1,000 random steps.
  function golden(wasm, steps = 1000) {
    const batch = wasm.web_open(64, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0), out = wasm.web_alloc(8);
    wasm.web_golden(batch, steps, out);
    const [low, high] = new Uint32Array(wasm.memory.buffer, out, 2);
    return high.toString(16).padStart(8, "0") + low.toString(16).padStart(8, "0");
  }

  return { open, golden, Env, Brain, Match, unpacked, bytesOf, randomFrom };
})();

if (typeof module !== "undefined") module.exports = Shoal;

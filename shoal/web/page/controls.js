// controls.js: what a person does with keys, buttons and clicks, as an action of the env.
"use strict";

const Controls = (() => {
  const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Space: "space", Enter: "enter" };
  const nameOf = (key) => NAMES[key] ?? key.replace(/^Key|^Digit/, "");

  // The keys of one person. `facts`: the "controls" of shoal/web/controls.py.
  class Hands {
    constructor(game) {
      this.facts = game.controls;
      this.size = game.action.size;
      this.held = new Set();
      this.pressed = []; // keys that wait for their step, where the game waits for the person
      this.last = this.facts.choices.map((choice) => choice.rest ?? 0);
    }

    knows(key) { return key in this.facts.keys; }
    press(key) {
      if (this.held.has(key)) return;
      this.held.add(key);
      this.pressed.push(key);
    }
    repeat(key) { this.pressed.push(key); }
    release(key) { this.held.delete(key); }
    clear() { this.held.clear(); this.pressed.length = 0; }

    // The values of an action from keys. Where a choice has no resting action, the last one is repeated.
    values(keys) {
      const values = new Array(this.size).fill(0), picks = this.facts.choices.map((choice, k) => choice.rest ?? this.last[k]);
      for (const number of this.facts.numbers) values[number.column] = number.rest;
      for (const key of keys) {
        const [kind, at, value] = this.facts.keys[key].does;
        if (kind === "number") values[this.facts.numbers[at].column] = value;
        else picks[at] = value;
      }
      this.facts.choices.forEach((choice, k) => { values[choice.column] += choice.weight * picks[k]; });
      this.last = picks;
      return values;
    }

    // The action of a key that was pressed, or null: the game waits.
    take() { return this.pressed.length ? this.values([this.pressed.shift()]) : null; }
    now() {
      const tapped = this.pressed.filter((key) => !this.held.has(key)); // pressed and released between two steps
      this.pressed.length = 0;
      return this.values([...this.held, ...tapped]);
    }
  }

  const allowedOf = (mask) => Array.from(mask ?? [], (one, k) => (one ? k : -1)).filter((k) => k >= 0);

  // ---- boards: where on the picture an action shows ----

  const centre = (item) => {
    if (item.kind === 0) return [item.x + item.a / 2, item.y + item.b / 2];
    if (item.kind === 2) return [(item.x + item.a) / 2, (item.y + item.b) / 2];
    if (item.kind === 4) {
      const count = item.points.length / 2, sum = [0, 0];
      item.points.forEach((value, k) => { sum[k % 2] += value / count; });
      return sum;
    }
    return [item.x, item.y];
  };
  const keyOf = (item) => JSON.stringify([item.kind, item.color, item.x, item.y, item.a, item.b, item.points]);
  const spot = ([x, y]) => `${x.toFixed(3)} ${y.toFixed(3)}`;

  // Tries each allowed action of an agent on a copy of the env, and finds what it changes in the picture: [{action, at:
  // [[x, y], ...], from}]: what appears, and what vanishes.
  function findPlaces(match, scratch, agent) {
    const env = match.env, record = env.save(), mask = env.mask(agent);
    scratch.load(record);
    const before = scratch.draw().items, had = new Set(before.map(keyOf));
    const found = [];
    for (const action of allowedOf(mask)) {
      scratch.load(record);
      for (let other = 0; other < env.agents; other++) scratch.act(other, [other === agent ? action : 0]);
      scratch.step();
      const after = scratch.draw().items, has = new Set(after.map(keyOf));
      const shapes = (item) => item.kind !== 3;
      const fresh = after.filter((item) => shapes(item) && !had.has(keyOf(item))).map(centre);
      const gone = before.filter((item) => shapes(item) && !has.has(keyOf(item))).map(centre);
      const spots = new Set(fresh.map(spot));
      found.push({ action, at: fresh, from: gone.filter((at) => !spots.has(spot(at))) });
    }
    // what other actions change too is less of a place: whose turn it is, marks, hints of the next moves
    const counts = new Map();
    for (const place of found) for (const one of new Set(place.at.map(spot))) counts.set(one, (counts.get(one) ?? 0) + 1);
    return found.map(({ action, at, from }) => {
      const least = Math.min(...at.map((one) => counts.get(spot(one))));
      const own = at.filter((one) => counts.get(spot(one)) === least && (found.length < 3 || least < 0.6 * found.length));
      return { action, at: own, from: from.filter((one) => !found.every((other) => other.from.some((its) => spot(its) === spot(one)))) };
    });
  }

  const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const nearest = (points, at) => points.reduce((best, point) => Math.min(best, distance(point, at)), Infinity);

  return { Hands, nameOf, allowedOf, findPlaces, nearest };
})();

// data.js: asks the server, and writes numbers and elements. Text of runs is only ever set as textContent.

export const $ = (id) => document.getElementById(id);

// An element with attributes and children: text, elements, or lists of them.
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== "list" && typeof value !== "string") node[key] = value;
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export async function ask(what, query = []) {
  const address = new URLSearchParams(query).toString();
  const answer = await fetch(`/api/${what}${address ? `?${address}` : ""}`);
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error((await answer.text()) || `error ${answer.status}`);
  return answer.json();
}

// Calls `work` now and then every `ms`, while the page is visible; `stop` ends it. One call at a time.
export function repeat(work, ms) {
  let timer = 0, isOver = false;
  const tick = async () => {
    clearTimeout(timer);
    if (isOver) return;
    if (!document.hidden) {
      try {
        await work();
        tell("");
      } catch (error) {
        tell(error instanceof TypeError ? "no connection: has shoal watch ended?" : error.message);
      }
    }
    if (!isOver) timer = setTimeout(tick, ms);
  };
  const wake = () => { if (!document.hidden) tick(); };
  document.addEventListener("visibilitychange", wake);
  tick();
  return { stop() { isOver = true; clearTimeout(timer); document.removeEventListener("visibilitychange", wake); }, now: tick };
}

export function tell(text) {
  if ($("state").textContent !== text) $("state").textContent = text;
}

// ---- numbers as text ----

const UNITS = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
export function human(value) { // a count: 1.2M
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  for (const [unit, scale] of UNITS) if (size >= 0.9995 * scale) return Number((value / scale).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(3)));
}
export function say(value) { // a metric in four digits
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  if (size >= 1e4) return human(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !(seconds >= 0) || seconds > 1e10) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)}s`;
  const whole = Math.round(seconds);
  for (const [big, small, units] of [[86400, 3600, "dh"], [3600, 60, "hm"], [60, 1, "ms"]]) {
    if (whole >= big) return `${Math.floor(whole / big)}${units[0]}${String(Math.floor((whole % big) / small)).padStart(2, "0")}${units[1]}`;
  }
  return `${whole}s`;
}
export function age(started) {
  const time = Date.parse(started);
  return Number.isNaN(time) ? "–" : `${duration(Math.max(0, (Date.now() - time) / 1000))} ago`;
}

// ---- what the person has chosen, kept between visits ----

export const kept = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(`watch.${name}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`watch.${name}`, JSON.stringify(value)); } catch { /* storage is full or disabled */ }
  },
};

export const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const statusDot = (status) => make("i", { class: `dot ${/^[a-z]+$/.test(status) ? status : ""}`, title: status });

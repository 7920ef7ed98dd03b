// chart.js: a chart on a canvas: lines with bands, axes, log or linear, a crosshair with values, zoom by dragging.

import { $, human, kept, make, say } from "./data.js";

const PAD = { left: 52, right: 14, top: 10, bottom: 26 };
const COLOURS = 8;
export const colour = (k) => `--c${k % COLOURS}`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// How all charts of a page are drawn. Changes redraw all.
export const settings = { x: "step", logX: false, logY: false, smooth: 1, band: "ci95", apart: false, ...kept.get("charts", {}) };
const charts = new Set();
export const resetZoom = () => { zoom = null; };
export const redrawAll = () => { for (const chart of charts) chart.later(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

export function toolbar(change, { many }) {
  const set = (key, value) => { settings[key] = value; kept.set("charts", settings); zoom = null; change(); redrawAll(); };
  const check = (key, label) => make("label", {}, make("input", { type: "checkbox", checked: settings[key], "data-set": key, onchange: (event) => set(key, event.target.checked) }), label);
  const choose = (key, label, choices) => {
    const box = make("select", { "aria-label": label, "data-set": key, onchange: () => set(key, box.value) }, choices.map(([value, text]) => make("option", { value }, text)));
    box.value = settings[key];
    return box;
  };
  const out = make("output", {}, `${settings.smooth} %`);
  const range = make("input", { type: "range", min: "0", max: "20", step: "0.5", value: String(settings.smooth), "aria-label": "smoothing", "data-set": "smooth",
    oninput: () => { out.textContent = `${range.value} %`; set("smooth", Number(range.value)); } });
  return make("div", { class: "bar" },
    choose("x", "x axis", [["step", "over steps"], ["wall", "over time"]]), check("logX", "log x"), check("logY", "log y"),
    make("label", { title: "a moving average over this part of the axis" }, "smooth", range, out),
    many ? [choose("band", "band", [["ci95", "95 % interval"], ["range", "min to max"], ["none", "no band"]]), check("apart", "every run")] : null);
}

// ---- numbers ----

export function smoothed(xs, ys, percent) { // as shoal plot: symmetric windows, narrower at the ends
  const last = xs.length - 1, span = xs[last] - xs[0], reach = (span * percent) / 200;
  if (!(reach > 0)) return ys;
  const sums = new Float64Array(xs.length + 1), out = new Array(xs.length);
  for (let k = 0; k <= last; k++) sums[k + 1] = sums[k] + ys[k];
  let low = 0, high = 0;
  for (let k = 0; k <= last; k++) {
    const half = Math.min(reach, xs[k] - xs[0], xs[last] - xs[k]) + 1e-9 * span;
    while (low < k && xs[low] < xs[k] - half) low++;
    while (low > 0 && xs[low - 1] >= xs[k] - half) low--; // windows shrink again at the end
    high = Math.max(high, k);
    while (high < last && xs[high + 1] <= xs[k] + half) high++;
    while (high > k && xs[high] > xs[k] + half) high--;
    out[k] = (sums[high + 1] - sums[low]) / (high + 1 - low);
  }
  return out;
}

export function valueAt(xs, ys, x) { // between points
  let low = 0, high = xs.length - 1;
  if (x <= xs[0]) return ys[0];
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
  const share = (x - xs[low]) / (xs[high] - xs[low] || 1);
  return ys[low] + share * (ys[high] - ys[low]);
}

// Several runs as one line: the mean, and a band, where all of them have values.
export function mean(lines, band, t) {
  if (lines.length === 1) return lines[0];
  const begin = Math.max(...lines.map((line) => line.x[0])), end = Math.min(...lines.map((line) => line.x[line.x.length - 1]));
  const count = end > begin ? 300 : 1, n = lines.length, x = [], y = [], low = [], high = [];
  for (let k = 0; k < count; k++) {
    const at = begin + (Math.max(end - begin, 0) * k) / Math.max(count - 1, 1), values = lines.map((line) => valueAt(line.x, line.y, at));
    const middle = values.reduce((a, b) => a + b, 0) / n;
    x.push(at);
    y.push(middle);
    if (band === "none") continue;
    if (band === "range") { low.push(Math.min(...values)); high.push(Math.max(...values)); continue; }
    const variance = values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (n - 1);
    const half = ((t[n - 2] ?? 1.96) * Math.sqrt(variance)) / Math.sqrt(n);
    low.push(middle - half);
    high.push(middle + half);
  }
  return band === "none" ? { x, y } : { x, y, low, high };
}

function ticks(low, high, count, isLog) {
  if (isLog) {
    const out = [], first = Math.floor(low), last = Math.ceil(high), step = Math.max(1, Math.ceil((last - first) / count));
    for (let k = first; k <= last; k += step) if (k >= low - 1e-9 && k <= high + 1e-9) out.push(k);
    if (out.length >= 2) return out;
  }
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999), out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && out.length < 50; k++) out.push(k * step);
  return out;
}

// ---- the chart ----

let zoom = null; // [low, high] of x, of all charts
let cross = null; // x of the crosshair, in all charts
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) { target.chart.isVisible = isIntersecting; if (isIntersecting) target.chart.later(); }
}, { rootMargin: "200px" });

export class Chart {
  // `lines()`: [{label, colour, x, y, low, high, faint}], with x and y already as they are shown.
  constructor(title, lines, { height = 190 } = {}) {
    Object.assign(this, { title, lines, height, isVisible: true, hidden: new Set() });
    this.canvas = make("canvas", { tabIndex: 0, role: "img", style: `height:${height}px` });
    this.value = make("b", {});
    this.legend = make("div", { class: "legend" });
    this.node = make("figure", { class: "chart" }, make("figcaption", {}, make("span", { title }, title), this.value), this.canvas, this.legend);
    this.canvas.chart = this;
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerleave = () => { if (!this.drag) { cross = null; $("tip").hidden = true; redrawAll(); } };
    this.canvas.onpointerdown = (event) => { this.drag = event.offsetX; if (event.pointerType === "mouse") this.canvas.setPointerCapture(event.pointerId); };
    this.canvas.onpointerup = (event) => this.release(event);
    this.canvas.ondblclick = () => { zoom = null; redrawAll(); };
    this.canvas.onkeydown = (event) => this.key(event);
    this.canvas.onblur = () => { cross = null; $("tip").hidden = true; redrawAll(); };
    seen.observe(this.canvas);
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(this.canvas);
    charts.add(this);
  }
  close() {
    charts.delete(this);
    seen.unobserve(this.canvas);
    this.observer.disconnect();
  }
  later() {
    if (this.isWaiting || !this.isVisible) return;
    this.isWaiting = true;
    requestAnimationFrame(() => { this.isWaiting = false; this.draw(); });
  }

  scales(lines) {
    const X = settings.logX ? Math.log10 : (v) => v, Y = settings.logY ? Math.log10 : (v) => v;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of lines) {
      for (let k = 0; k < line.x.length; k++) {
        const x = X(line.x[k]);
        if (!Number.isFinite(x) || (zoom && (line.x[k] < zoom[0] || line.x[k] > zoom[1]))) continue;
        x0 = Math.min(x0, x);
        x1 = Math.max(x1, x);
        for (const value of [line.y[k], line.low?.[k], line.high?.[k]]) {
          const y = value === undefined ? NaN : Y(value);
          if (Number.isFinite(y)) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
        }
      }
    }
    if (!(x1 >= x0) || !(y1 >= y0)) return null;
    if (zoom) { [x0, x1] = [Math.max(X(Math.max(zoom[0], 1e-9)), settings.logX ? x0 : -Infinity), X(zoom[1])]; }
    if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
    const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
    const width = this.canvas.clientWidth - PAD.left - PAD.right, height = this.height - PAD.top - PAD.bottom;
    [y0, y1] = [y0 - room, y1 + room];
    return {
      x0, x1, y0, y1, width, height,
      x: (v) => PAD.left + ((X(v) - x0) / (x1 - x0)) * width,
      y: (v) => PAD.top + height - ((Y(v) - y0) / (y1 - y0)) * height,
      back: (px) => { const u = x0 + ((px - PAD.left) / width) * (x1 - x0); return settings.logX ? 10 ** u : u; },
    };
  }

  draw() {
    const { canvas } = this, width = canvas.clientWidth, context = canvas.getContext("2d"), ratio = devicePixelRatio;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(this.height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.all = this.lines();
    this.shown = this.all.filter((line) => !this.hidden.has(line.label) && line.x.length);
    const at = (this.at = this.scales(this.shown));
    this.tellLegend();
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css("--soft");
    if (!at) { context.fillText("no values yet", PAD.left, this.height / 2); return; }
    this.drawAxes(context, at, width);
    context.save();
    context.beginPath();
    context.rect(PAD.left - 4, PAD.top - 4, at.width + 8, at.height + 8); // with room for the dot of a single value
    context.clip();
    for (const line of this.shown) this.drawLine(context, at, line);
    context.restore();
    if (cross !== null) this.drawCross(context, at);
    if (this.drag !== undefined && this.dragTo !== undefined) {
      context.fillStyle = `${css("--c0")}33`;
      context.fillRect(Math.min(this.drag, this.dragTo), PAD.top, Math.abs(this.dragTo - this.drag), at.height);
    }
  }
  drawAxes(context, at, width) {
    context.strokeStyle = css("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const values = ticks(at.y0, at.y1, Math.round(this.height / 36), settings.logY).map((tick) => (settings.logY ? 10 ** tick : tick));
    const isNarrow = new Set(values.map(say)).size < values.length; // 2.1001 and 2.1002 need more digits
    for (const value of values) {
      const y = Math.round(at.y(value)) + 0.5;
      context.beginPath();
      context.moveTo(PAD.left, y);
      context.lineTo(width - PAD.right, y);
      context.stroke();
      context.fillText(isNarrow ? String(Number(value.toPrecision(7))) : say(value), PAD.left - 6, y);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const unit = settings.x === "wall" ? clock : human;
    let said = "";
    for (const tick of ticks(at.x0, at.x1, Math.max(2, Math.floor(at.width / 90)), settings.logX)) {
      const value = settings.logX ? 10 ** tick : tick, x = at.x(value);
      if (x < PAD.left - 1 || x > width - PAD.right + 1 || unit(value) === said) continue;
      context.fillText((said = unit(value)), x, this.height - PAD.bottom + 7);
    }
  }
  drawLine(context, at, line) {
    const ink = css(line.colour), isPoint = line.x.length === 1;
    const trace = (ys, from, to, step) => {
      for (let k = from; k !== to; k += step) {
        const [x, y] = [at.x(line.x[k]), at.y(ys[k])];
        if (Number.isFinite(x) && Number.isFinite(y)) context.lineTo(x, y);
      }
    };
    if (line.low) {
      context.beginPath();
      trace(line.high, 0, line.x.length, 1);
      trace(line.low, line.x.length - 1, -1, -1);
      context.fillStyle = `${ink}30`;
      context.fill();
    }
    context.beginPath();
    context.globalAlpha = line.faint ? 0.28 : 1;
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = line.faint ? 1 : 1.7;
    context.lineJoin = "round";
    if (isPoint) context.arc(at.x(line.x[0]), at.y(line.y[0]), 3, 0, 7);
    trace(line.y, 0, line.x.length, 1);
    if (isPoint) context.fill();
    else context.stroke();
    context.globalAlpha = 1;
  }
  drawCross(context, at) {
    const x = at.x(cross);
    if (!(x >= PAD.left && x <= PAD.left + at.width)) return;
    context.strokeStyle = css("--soft");
    context.beginPath();
    context.moveTo(x, PAD.top);
    context.lineTo(x, PAD.top + at.height);
    context.stroke();
    for (const line of this.shown) {
      if (line.faint || cross < line.x[0] || cross > line.x[line.x.length - 1]) continue;
      const y = at.y(valueAt(line.x, line.y, cross));
      context.fillStyle = css(line.colour);
      context.beginPath();
      context.arc(x, y, 3.2, 0, 7);
      context.fill();
    }
  }

  tellLegend() {
    const lines = this.all.filter((line) => !line.faint), only = lines.length === 1 ? lines[0] : null;
    const last = (line) => (line.x.length ? say(line.y[line.y.length - 1]) : "–");
    this.value.textContent = only ? last(only) : "";
    this.canvas.setAttribute("aria-label", `${this.title}: ${lines.slice(0, 8).map((line) => `${line.label} ${last(line)}`).join(", ")}`);
    const key = JSON.stringify([lines.map((line) => [line.label, line.colour]), [...this.hidden]]);
    if (only || key === this.legendKey) { if (only) this.legend.replaceChildren(); return; }
    this.legendKey = key;
    this.legend.replaceChildren(...lines.map((line) => make("button", {
      "aria-pressed": String(!this.hidden.has(line.label)), title: line.label,
      onclick: () => { if (!this.hidden.delete(line.label)) this.hidden.add(line.label); this.draw(); },
    }, make("i", { style: `background:var(${line.colour})` }), line.label)));
  }

  // ---- pointer and keys ----

  point(event) {
    if (!this.at) return;
    cross = Math.min(Math.max(this.at.back(event.offsetX), this.at.back(PAD.left)), this.at.back(PAD.left + this.at.width));
    if (this.drag !== undefined && event.buttons) this.dragTo = event.offsetX;
    this.tellValues(event.clientX, event.clientY);
    redrawAll();
  }
  release(event) {
    if (this.dragTo !== undefined && this.at && Math.abs(this.dragTo - this.drag) > 12) {
      zoom = [this.at.back(this.drag), this.at.back(this.dragTo)].sort((a, b) => a - b);
    }
    this.drag = this.dragTo = undefined;
    if (event.pointerType === "mouse") this.canvas.releasePointerCapture(event.pointerId);
    redrawAll();
  }
  key(event) {
    if (event.key === "Escape") { zoom = null; cross = null; $("tip").hidden = true; redrawAll(); return; }
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.at) return;
    event.preventDefault();
    const from = cross === null ? PAD.left + this.at.width : this.at.x(cross);
    cross = this.at.back(Math.min(Math.max(from + (move * this.at.width) / 50, PAD.left), PAD.left + this.at.width));
    const box = this.canvas.getBoundingClientRect();
    this.tellValues(box.left + this.at.x(cross), box.top + 20);
    redrawAll();
  }
  tellValues(left, top) {
    const tip = $("tip"), rows = this.shown.filter((line) => !line.faint && cross >= line.x[0] && cross <= line.x[line.x.length - 1]);
    const values = rows.map((line) => ({ line, value: valueAt(line.x, line.y, cross) })).sort((a, b) => b.value - a.value).slice(0, 14);
    tip.replaceChildren(make("div", { class: "soft" }, settings.x === "wall" ? clock(cross) : `step ${human(cross)}`),
      ...values.map(({ line, value }) => make("div", {}, make("i", { style: `background:var(${line.colour})` }), make("b", {}, say(value)),
        line.low ? make("span", { class: "soft" }, ` (${say(valueAt(line.x, line.low, cross))} to ${say(valueAt(line.x, line.high, cross))})`) : null,
        this.shown.length > 1 ? make("span", { class: "soft" }, ` ${line.label}`) : null)));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, left + 16 + width > innerWidth ? left - width - 16 : left + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(top + 12, innerHeight - height - 4))}px`;
  }
}

function clock(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))}s`;
  return seconds < 7200 ? `${Number((seconds / 60).toPrecision(3))}m` : `${Number((seconds / 3600).toPrecision(3))}h`;
}

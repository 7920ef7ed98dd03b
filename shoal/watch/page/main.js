// main.js: which view the address names: the list, a run, a comparison, a sweep.

import { resetZoom } from "./chart.js";
import { Compare } from "./compare.js";
import { $, make, path } from "./data.js";
import { List, showPicked } from "./list.js";
import { RunPage } from "./run.js";

let view = null;

function decode(text) {
  try { return text.split("/").map(decodeURIComponent).join("/"); } catch { return text; }
}

function show() {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/"), place = $("view"), name = rest.join("/");
  view?.close();
  resetZoom();
  $("tip").hidden = true;
  scrollTo(0, 0);
  document.title = kind === "compare" ? "Compare runs" : kind === "sweep" ? decode(name) : "shoal watch";
  if (kind === "run") view = new RunPage(place, decode(name));
  else if (kind === "compare") view = new Compare(place, name.split(",").filter(Boolean).map(decode));
  else if (kind === "sweep") view = new Sweep(place, decode(name));
  else view = new List(place);
  showPicked();
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.dataset.view === (kind === "compare" ? "compare" : kind ? "" : "list"));
}

class Sweep {
  constructor(place, name) {
    const wait = make("p", { role: "status" }, "reading the sweep …"); // the first one takes some seconds
    const frame = make("iframe", { src: `/sweep/${path(name)}`, title: "the sweep", class: "tall", onload: () => { wait.hidden = true; } });
    const again = make("button", { onclick: () => { wait.hidden = false; frame.src = frame.getAttribute("src"); } }, "Reload");
    place.replaceChildren(make("div", { class: "bar" }, make("h1", {}, name), again), wait, frame);
  }
  close() {}
}

// The token was needed once: the cookie has it now.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", `/${location.hash}`);
addEventListener("hashchange", show);
addEventListener("keydown", (event) => { // as in many pages of lists
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  event.preventDefault();
  document.querySelector("input[type=search]")?.focus();
});
show();
window.app = { get view() { return view; } };

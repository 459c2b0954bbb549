import { Model, found, keyOf, matcher, nameOf } from "./model.js";
import { changeColor, colorOf, label } from "./colors.js";
import { Graph } from "./graph.js";
import { Table } from "./table.js";
import { Timeline } from "./timeline.js";
import * as links from "./state.js";
import "./page.css";

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const model = new Model(data);
let state = links.parse(location.hash, data);
let graphs = [];
let all = 0;

// Amounts are in the data's unit, multiplied by scale to make them whole numbers.
const number = (value) => {
  value /= data.scale;
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 1 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};
const amount = (value) => `${number(value)} ${data.unit}`;
// both gives the values before and after.
const both = ([before, after]) => `before ${amount(before)}, after ${amount(after)}, ` +
  (before ? `${after >= before ? "+" : ""}${(100 * (after / before - 1)).toFixed(0)} %` : "new");
const share = (value) => `${(all ? 100 * value / all : 0).toFixed(1)} %`;

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const dark = () => state.theme ? state.theme === "dark" : systemDark.matches;
const color = (node) => model.compares ? changeColor(node.sides ?? node.self, dark()) : colorOf(node.kind, node.name, dark());

// samples is the number of timer hits in an amount. chance is the error of their share in points, in 19 of 20 cases, "" below one.
// It is the farther end of Agresti and Coull's interval, as in the command's table.
const samples = (value) => data.period ? Math.round(value / data.scale / data.period) : 0;
function chance(value) {
  const n = samples(all), z = 1.96, m = n + z ** 2, p = (samples(value) + z ** 2 / 2) / m;
  const reach = z * Math.sqrt(Math.max(0, p * (1 - p)) / m), of = samples(value) / n;
  const error = 100 * Math.max(of - Math.max(0, p - reach), Math.min(1, p + reach) - of);
  return samples(value) && error >= 1 ? ` ±${Math.ceil(error)}` : "";
}
const counted = (value) => data.period ? `; ${samples(value)} samples${chance(value) && `,${chance(value)} points`}` : "";

function describe(node) {
  const what = `${node.name}${node.kind ? `, ${label(node.kind)}` : ""}${node.place ? ` in ${node.place}` : ""}`;
  if (model.compares) {
    return `${what}: ${both(node.sides)}`;
  }
  const self = node.self[0] + node.self[1];
  return `${what}: ${share(node.value)}, ${amount(node.value)}; itself ${share(self)}, ${amount(self)}${counted(node.value)}`;
}

function details(node) {
  byId("details").textContent = node ? describe(node) : "";
}

function open(key) {
  state.fn = key;
  show("around");
  byId("around-title").focus();
}

function openNode(node) {
  if (node.kind && node.kind !== "service" && node.kind !== "program") open(keyOf(node));
}

function show(view) {
  state.view = view;
  draw();
}

function remember() {
  const fragment = links.format(state, data);
  history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
}

const table = new Table(byId("table"), {
  compares: model.compares, own: data.own, unit: data.unit, number, amount, share,
  samples: data.period ? samples : null, chance: data.period ? chance : () => "", places: data.places.some(Boolean),
  swatch: (row) => color(row),
  onSort: (column) => {
    state.sort = column;
    draw();
    byId("table").querySelector("th[aria-sort] button")?.focus();
  },
  onOpen: open,
});

const timeline = data.steps > 1 && new Timeline(
  { line: byId("line"), from: byId("from"), to: byId("to"), text: byId("range"), all: byId("whole") }, data,
  (from, to) => {
    const whole = from === 0 && to === data.steps - 1;
    [state.from, state.to] = whole ? [-1, -1] : [from, to];
    draw();
  },
);
byId("time").hidden = !timeline;

// draw shows the state. A graph is only drawn while its panel is visible, because it takes its width from there.
function draw() {
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", dark());
  byId("tab-around").hidden = !state.fn;
  for (const view of ["flame", "table", "around"]) {
    const on = state.view === view;
    byId(`tab-${view}`).setAttribute("aria-selected", on);
    byId(`tab-${view}`).tabIndex = on ? 0 : -1;
    byId(`panel-${view}`).hidden = !on;
  }
  if (timeline) timeline.draw(model.line(state), Math.max(state.from, 0), state.from < 0 ? data.steps - 1 : state.to, amount);
  const tree = model.tree(state);
  all = tree.value;
  graphs = [];
  const options = { color, describe, onFocus: details, onOpen: openNode, onZoom: () => {}, empty: "No samples: choose another service, thread or time." };
  if (state.view === "flame") {
    const graph = new Graph(byId("flame"), tree, {
      ...options, label: `Flame graph: ${data.title}`, onZoom: (id) => { state.zoom = id; remember(); },
    });
    graphs = [graph];
    if (!graph.zoom(state.zoom)) state.zoom = "";
  } else if (state.view === "around") {
    const { callers, callees } = model.around(state, state.fn);
    byId("around-title").textContent = nameOf(state.fn);
    byId("around-sum").textContent = !callers.value ? "" : model.compares ? both(callers.sides) : `${share(callers.value)}, ${amount(callers.value)} in all; itself ${share(callees.self[0] + callees.self[1])}`;
    graphs = [
      new Graph(byId("callers"), callers, { ...options, upwards: true, label: `Callers of ${nameOf(state.fn)}` }),
      new Graph(byId("callees"), callees, { ...options, label: `What ${nameOf(state.fn)} calls` }),
    ];
  } else {
    table.draw(model.table(state), { sort: state.sort, match: matcher(state.search), term: state.search });
  }
  details(null);
  legend();
  search(tree);
  remember();
}

function search(tree) {
  const match = matcher(state.search);
  for (const graph of graphs) graph.search(match);
  const result = byId("result");
  if (!state.search) {
    result.textContent = `${model.compares ? `in all ${both(tree.sides)}` : `${amount(all)} in all`}${data.left ? `; ${data.left} of the smallest frames are part of their callers` : ""}`;
    return;
  }
  const { sides, functions } = found(tree, match);
  const matching = `in or below ${functions} ${functions === 1 ? "function that matches" : "functions that match"}`;
  if (!functions) result.textContent = "no function matches";
  else if (model.compares) result.textContent = `${matching}: ${both(sides)}`;
  else result.textContent = `${share(sides[0])} of the samples, ${amount(sides[0])}, are ${matching}`;
}

function legend() {
  const list = byId("legend");
  list.replaceChildren();
  const entry = (background, text) => {
    const li = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = background;
    li.append(swatch, text);
    list.append(li);
  };
  if (model.compares) {
    for (const [sides, text] of [[[3, 1], "less than before"], [[1, 1], "the same"], [[1, 3], "more than before"]]) entry(changeColor(sides, dark()), text);
    return;
  }
  for (const [kind, value] of model.shares(state)) entry(colorOf(kind, "", dark()), `${label(kind)} ${share(value)}`);
}

function fill(select, names, what, chosen) {
  for (const [value, text] of [[-1, `all ${what}`], ...names.map((n, i) => [i, n || "(no name)"])]) {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = text;
    select.append(option);
  }
  select.value = chosen;
  select.disabled = names.length < 2;
}

document.title = data.title;
byId("title").textContent = data.title;
byId("subtitle").textContent = data.subtitle;
fill(byId("service"), data.services, "services", state.service);
fill(byId("thread"), data.threads, "threads", state.thread);
byId("search").value = state.search;
byId("grouped").checked = state.grouped;
byId("folded").checked = state.folded;
byId("folded").parentElement.hidden = !data.nodes.some((n) => n[4]);

byId("search").addEventListener("input", (event) => {
  state.search = event.target.value;
  if (state.view === "table") return draw();
  search(model.tree(state));
  remember();
});
for (const what of ["service", "thread"]) {
  byId(what).addEventListener("change", (event) => { state[what] = Number(event.target.value); draw(); });
}
byId("grouped").addEventListener("change", (event) => { state.grouped = event.target.checked; draw(); });
byId("folded").addEventListener("change", (event) => { state.folded = event.target.checked; draw(); });
byId("theme").addEventListener("click", () => { state.theme = dark() ? "light" : "dark"; draw(); });
byId("reset").addEventListener("click", () => {
  state = { ...links.initial(data), theme: state.theme };
  for (const what of ["service", "thread"]) byId(what).value = -1;
  byId("search").value = "";
  byId("grouped").checked = true;
  byId("folded").checked = state.folded;
  draw();
});
const tabs = ["flame", "table", "around"];
for (const view of tabs) byId(`tab-${view}`).addEventListener("click", () => show(view));
byId("tabs").addEventListener("keydown", (event) => {
  const there = tabs.filter((v) => !byId(`tab-${v}`).hidden);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const view = there[(there.indexOf(state.view) + step + there.length) % there.length];
  show(view);
  byId(`tab-${view}`).focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
});
byId("licences-open").addEventListener("click", () => byId("licences").showModal());
systemDark.addEventListener("change", draw);
addEventListener("hashchange", () => {
  state = links.parse(location.hash, data);
  byId("search").value = state.search;
  byId("service").value = state.service;
  byId("thread").value = state.thread;
  byId("grouped").checked = state.grouped;
  byId("folded").checked = state.folded;
  draw();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  for (const graph of graphs) graph.redraw();
});
draw();

import flamegraph from "d3-flame-graph";
import { select } from "d3-selection";
import { hash } from "./model.js";

// smallest is the minimum width of a drawn frame in pixels.
const smallest = 1;
const rowHeight = 20;

// Graph draws a tree with d3-flame-graph, with keyboard and screen reader support. It is one stop of the Tab key, and the arrow
// keys move within it.
export class Graph {
  // options: label, the name for readers; upwards, if the root is at the bottom; color(node),
  // describe(node), onZoom(id), onFocus(node), onOpen(node).
  constructor(element, tree, options) {
    this.element = element;
    this.options = options;
    element.replaceChildren();
    if (!tree.value) {
      const empty = document.createElement("p");
      empty.textContent = options.empty;
      element.append(empty);
      return;
    }
    this.chart = flamegraph()
      .width(Math.max(200, element.clientWidth))
      .cellHeight(rowHeight)
      .minFrameSize(smallest)
      .transitionDuration(0)
      .inverted(!options.upwards)
      .resetHeightOnZoom(true)
      .getName((d) => d.data.name)
      .sort((a, b) => b.data.value - a.data.value || (a.data.name < b.data.name ? -1 : 1))
      .setLabelHandler((d) => options.describe(d.data))
      .setColorMapper((d) => d.highlight ? "var(--found)" : options.color(d.data))
      .setSearchMatch((d, match) => d.depth > 0 && match(d.data.name))
      .setSearchHandler(() => {})
      .setDetailsHandler(() => {})
      .onHover((d) => options.onFocus(d.data))
      .onClick((d) => { this.root = d; this.decorate(d); options.onZoom(d.parent ? pathOf(d) : ""); });
    select(element).datum(tree).call(this.chart);
    this.top = this.root = select(element).datum();
    const svg = element.querySelector("svg");
    svg.querySelector("text.title").remove();
    svg.setAttribute("role", "tree");
    svg.setAttribute("aria-label", options.label);
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("focusin", (event) => {
      const node = select(event.target.closest("g.frame")).datum();
      this.current(event.target.closest("g.frame"));
      options.onFocus(node.data);
    });
    svg.addEventListener("dblclick", (event) => {
      const g = event.target.closest("g.frame");
      if (g) options.onOpen(select(g).datum().data);
    });
    this.decorate(this.top);
  }

  // decorate gives the drawn frames their roles. focus is the frame that Tab reaches.
  decorate(focus) {
    for (const g of this.element.querySelectorAll("g.frame")) {
      const d = select(g).datum();
      g.setAttribute("role", "treeitem");
      g.setAttribute("aria-level", d.depth + 1);
      g.setAttribute("aria-label", this.options.describe(d.data));
      g.setAttribute("tabindex", "-1");
      g.removeAttribute("name");
      g.classList.toggle("found", Boolean(d.highlight));
      if (d === focus) this.current(g);
    }
  }

  current(g) {
    this.focused?.setAttribute("tabindex", "-1");
    this.focused = g;
    g.setAttribute("tabindex", "0");
  }

  find(d) {
    return [...this.element.querySelectorAll("g.frame")].find((g) => select(g).datum() === d);
  }

  key(event) {
    const d = select(event.target.closest("g.frame")).datum();
    const drawn = (list) => list.filter((e) => e.x1 > e.x0 && this.find(e));
    const siblings = d.parent ? drawn(d.parent.children).sort((a, b) => a.x0 - b.x0) : [d];
    const down = this.options.upwards ? "ArrowUp" : "ArrowDown", up = this.options.upwards ? "ArrowDown" : "ArrowUp";
    let to;
    switch (event.key) {
      case down: to = drawn(d.children ?? []).sort((a, b) => b.value - a.value)[0]; break;
      case up: to = d.parent; break;
      case "ArrowRight": to = siblings[siblings.indexOf(d) + 1]; break;
      case "ArrowLeft": to = siblings[siblings.indexOf(d) - 1]; break;
      case "Home": to = this.top; break;
      case "Enter": case " ": this.chart.zoomTo(d); to = d; break;
      case "Escape": this.chart.resetZoom(); to = d; break;
      case "o": this.options.onOpen(d.data); event.preventDefault(); return;
      default: return;
    }
    event.preventDefault();
    if (to) this.find(to)?.focus();
  }

  search(match) {
    if (!this.chart) return;
    this.chart.search(match);
    this.decorate(this.root);
  }

  // zoom shows the frame of an earlier onZoom, and reports whether it exists.
  zoom(id) {
    if (!this.chart) return false;
    if (!id) {
      if (this.root !== this.top) this.chart.resetZoom();
      return true;
    }
    const d = this.top.descendants().find((n) => n.parent && pathOf(n) === id);
    if (d) this.chart.zoomTo(d);
    return Boolean(d);
  }

  redraw() {
    if (!this.chart) return;
    this.chart.width(Math.max(200, this.element.clientWidth)).update();
    this.decorate(this.root);
  }
}

// pathOf identifies a frame by the names from the root to it.
const pathOf = (d) => hash(d.ancestors().map((a) => `${a.data.kind} ${a.data.name}`).join("\n"));

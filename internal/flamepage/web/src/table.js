import { label } from "./colors.js";
import { keyOf, NOT_OWN } from "./model.js";

// shown limits the rows of the table. A search finds the others.
const shown = 300;

const nobody = keyOf(NOT_OWN);

// Table lists functions. Beside its headings, it is one stop of the Tab key, and the arrow keys move within it.
export class Table {
  // options: compares, own, unit, places, number(value), amount(value), share(value), chance(value), samples(value) if a timer has sampled, swatch(row), onSort(column), onOpen(key)
  constructor(element, options) {
    this.element = element;
    this.options = options;
  }

  draw(rows, { sort, match, term }) {
    const { compares, own, places, samples, chance, number, amount, share } = this.options;
    const sum = ([a, b]) => a + b;
    const itself = (r) => own ? r.own : r.self;
    const change = (r) => itself(r)[1] - itself(r)[0];
    if (compares && sort !== "name") sort = "change";
    sort ||= own ? "own" : "self";
    const value = { own: (r) => r.key === nobody ? Number.MIN_VALUE : sum(r.own), self: (r) => sum(r.self), total: (r) => sum(r.total), change: (r) => Math.abs(change(r)) }[sort];
    const list = rows.filter((r) => (!term || match(r.name)) && (!compares || sum(itself(r)) > 0));
    list.sort((a, b) => (value ? value(b) - value(a) || sum(b.total) - sum(a.total) : 0) || (a.name < b.name ? -1 : 1));

    const columns = compares
      ? [["self", "Before"], ["total", "After"], ["change", "Change"], ["name", "Function"]]
      : [...(own ? [["own", "Own"]] : []), ["self", "Self"], ["total", "Total"], ...(samples ? [["samples", "Samples"]] : []), ["name", "Function"]];
    if (places) columns.push(["place", "File"]);
    const table = document.createElement("table");
    const caption = table.createCaption();
    caption.textContent = `${list.length} functions${list.length > shown ? `, the first ${shown} of them` : ""}` +
      (compares ? `: ${own ? "own" : "self"} values, in ${this.options.unit}` : "") +
      (own ? "; own also counts the libraries, runtimes and the kernel that a function of the program called" : "");
    const head = table.createTHead().insertRow();
    for (const [column, text] of columns) {
      const th = document.createElement("th");
      th.scope = "col";
      const sortable = column !== "samples" && column !== "place" && (!compares || column === "change" || column === "name");
      if (sortable) {
        if (column === sort) th.ariaSort = column === "name" ? "ascending" : "descending";
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.addEventListener("click", () => this.options.onSort(column));
        th.append(button);
      } else {
        th.textContent = text;
      }
      head.append(th);
    }
    const body = table.createTBody();
    for (const row of list.slice(0, shown)) {
      const tr = body.insertRow();
      const cell = (text) => {
        const td = tr.insertCell();
        td.className = "number";
        td.textContent = text;
      };
      if (compares) {
        cell(number(itself(row)[0]));
        cell(number(itself(row)[1]));
        cell((change(row) > 0 ? "+" : "") + number(change(row)));
      } else {
        if (own) cell(`${share(sum(row.own))}  ${amount(sum(row.own))}`);
        cell(`${share(sum(row.self))}${chance(sum(row.self))}  ${amount(sum(row.self))}`);
        cell(`${share(sum(row.total))}  ${amount(sum(row.total))}`);
        if (samples) cell(samples(sum(row.self)).toLocaleString("en"));
      }
      const td = tr.insertCell();
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = this.options.swatch(row);
      const button = document.createElement("button");
      button.type = "button";
      button.className = "function";
      button.tabIndex = -1;
      button.textContent = row.name;
      button.title = `${label(row.kind)}${row.place ? ` in ${row.place}` : ""}: callers and callees`;
      button.addEventListener("click", () => this.options.onOpen(row.key));
      button.disabled = row.key === nobody;
      td.append(swatch, button);
      if (places) {
        const place = tr.insertCell();
        place.className = "place";
        place.textContent = row.place.slice(row.place.lastIndexOf("/") + 1);
        place.title = row.place;
      }
    }
    const buttons = [...body.querySelectorAll("button:enabled")];
    if (buttons.length) buttons[0].tabIndex = 0;
    body.addEventListener("keydown", (event) => {
      const at = buttons.indexOf(event.target);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined || !buttons[to]) return;
      event.preventDefault();
      event.target.tabIndex = -1;
      buttons[to].tabIndex = 0;
      buttons[to].focus();
    });
    this.element.replaceChildren(table);
  }
}

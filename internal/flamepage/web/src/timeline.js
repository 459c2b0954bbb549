// The line of values over time, for choosing a range: with the pointer on the line, or with a slider for each end.
const svgName = "http://www.w3.org/2000/svg";
const height = 64;

export class Timeline {
  // elements: the line's svg, the sliders, the text of the range, the button for all of it. onChange gets the first and the last step.
  constructor(elements, data, onChange) {
    Object.assign(this, elements, { data, onChange });
    for (const slider of [this.from, this.to]) slider.max = data.steps - 1;
    this.from.addEventListener("input", () => this.chosen(Number(this.from.value), Math.max(Number(this.from.value), Number(this.to.value))));
    this.to.addEventListener("input", () => this.chosen(Math.min(Number(this.from.value), Number(this.to.value)), Number(this.to.value)));
    this.all.addEventListener("click", () => this.chosen(0, data.steps - 1));
    const at = (event) => {
      const box = this.line.getBoundingClientRect();
      return Math.max(0, Math.min(data.steps - 1, Math.floor((event.clientX - box.left) / box.width * data.steps)));
    };
    this.line.addEventListener("pointerdown", (event) => {
      this.began = at(event);
      this.line.setPointerCapture(event.pointerId);
      this.chosen(this.began, this.began);
    });
    this.line.addEventListener("pointermove", (event) => {
      if (this.began === undefined) return;
      this.chosen(Math.min(this.began, at(event)), Math.max(this.began, at(event)));
    });
    for (const end of ["pointerup", "pointercancel"]) this.line.addEventListener(end, () => { this.began = undefined; });
  }

  chosen(from, to) {
    if (from !== this.first || to !== this.last) this.onChange(from, to);
  }

  clock(step) {
    const t = new Date(this.data.start + step * this.data.step);
    const day = this.data.steps * this.data.step > 12 * 3600e3 ? { month: "short", day: "numeric" } : {};
    return t.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit" });
  }

  // draw shows the sums of all steps. The steps from first to last are chosen.
  draw(values, first, last, amount) {
    Object.assign(this, { first, last });
    const n = this.data.steps, most = Math.max(...values, 1);
    const make = (name, attributes) => {
      const e = document.createElementNS(svgName, name);
      for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
      return e;
    };
    this.line.setAttribute("viewBox", `0 0 ${n} ${height}`);
    const y = (v) => (height - v / most * (height - 4)).toFixed(1);
    const path = values.map((v, i) => `L${i} ${y(v)}L${i + 1} ${y(v)}`).join("");
    this.line.replaceChildren(
      make("rect", { class: "chosen", x: first, width: last - first + 1, y: 0, height }),
      make("path", { class: "values", d: `M0 ${height}${path}L${n} ${height}Z` }),
    );
    const sum = values.slice(first, last + 1).reduce((a, b) => a + b, 0);
    const text = `${this.clock(first)} to ${this.clock(last + 1)}`;
    this.line.setAttribute("aria-label", `Values over time, at most ${amount(most)} in ${this.data.step / 1000} s`);
    this.text.textContent = `${text}: ${amount(sum)}`;
    for (const [slider, step, shown] of [[this.from, first, first], [this.to, last, last + 1]]) {
      slider.value = step;
      slider.setAttribute("aria-valuetext", this.clock(shown));
    }
    this.all.disabled = first === 0 && last === n - 1;
  }
}

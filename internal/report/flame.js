"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [PARENT, NAME, KIND, TOTAL, SELF] = [0, 1, 2, 3, 4];
  const graph = document.getElementById("graph");
  const status = document.getElementById("status");
  const search = document.getElementById("search");
  const rowHeight = 17, smallest = 0.05;
  const hues = { service: 210, program: 150, kernel: 5, native: 45, go: 185 };
  const children = data.nodes.map(() => []);
  const depth = data.nodes.map(() => 0);
  data.nodes.forEach((n, i) => {
    if (n[PARENT] >= 0) {
      children[n[PARENT]].push(i);
      depth[i] = depth[n[PARENT]] + 1;
    }
  });
  children.forEach((list) => list.sort((a, b) => data.nodes[b][TOTAL] - data.nodes[a][TOTAL]));
  const name = (i) => data.names[data.nodes[i][NAME]];
  const kind = (i) => data.names[data.nodes[i][KIND]];
  const amount = (v) => data.unit === "µs" ? (v / 1e6).toFixed(3) + " s" : v.toLocaleString() + " " + data.unit;
  const all = data.nodes[0][TOTAL];
  const share = (v) => (all ? 100 * v / all : 0).toFixed(1) + " %";
  const describe = (i) => {
    const n = data.nodes[i];
    return name(i) + (kind(i) ? " [" + kind(i) + "]" : "") + "  " + share(n[TOTAL]) + ", " + amount(n[TOTAL]) +
      "; itself " + share(n[SELF]) + ", " + amount(n[SELF]);
  };
  const shade = (s) => {
    let h = 0;
    for (let i = 0; i < s.length; i++) h = (h * 31 + s.charCodeAt(i)) | 0;
    return 72 + Math.abs(h) % 14;
  };
  let root = 0;
  const idle = () => {
    status.textContent = describe(root) + (data.left ? "  (" + data.left + " of the smallest boxes are left out)" : "");
  };
  const box = (i, x, width, above) => {
    const d = document.createElement("div");
    d.style.left = x + "%";
    d.style.width = width + "%";
    d.style.top = depth[i] * rowHeight + "px";
    const hue = hues[kind(i)];
    d.style.background = hue === undefined ? "hsl(0 0% " + shade(name(i)) + "%)" : "hsl(" + hue + " 80% " + shade(name(i)) + "%)";
    d.textContent = name(i);
    d.title = describe(i);
    d.tabIndex = 0;
    if (above) d.classList.add("above");
    const term = search.value.toLowerCase();
    if (term && name(i).toLowerCase().includes(term)) d.classList.add("found");
    d.addEventListener("mouseenter", () => { status.textContent = describe(i); });
    d.addEventListener("mouseleave", idle);
    d.addEventListener("click", () => { root = i; draw(); });
    d.addEventListener("keydown", (e) => { if (e.key === "Enter") { root = i; draw(); } });
    graph.append(d);
  };
  const draw = () => {
    graph.replaceChildren();
    let deepest = depth[root];
    for (let p = data.nodes[root][PARENT]; p >= 0; p = data.nodes[p][PARENT]) box(p, 0, 100, true);
    const work = [[root, 0, 100]];
    while (work.length) {
      const [i, x, width] = work.pop();
      deepest = Math.max(deepest, depth[i]);
      box(i, x, width, false);
      let left = x;
      for (const c of children[i]) {
        const w = width * data.nodes[c][TOTAL] / data.nodes[i][TOTAL];
        if (w >= smallest) work.push([c, left, w]);
        left += w;
      }
    }
    graph.style.height = (deepest + 1) * rowHeight + "px";
    idle();
  };
  document.querySelector("h1").textContent = data.title;
  document.getElementById("reset").addEventListener("click", () => { root = 0; search.value = ""; draw(); });
  search.addEventListener("input", draw);
  draw();
})();

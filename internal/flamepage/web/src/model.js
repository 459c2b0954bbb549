// The data of a page from internal/flamepage, and the trees to draw. Nothing here uses the document.

// NOT_OWN is the table's row for stacks without a function of the program's own. Their own node is below 0.
export const NOT_OWN = { name: "[no function of its own]", kind: "" };

// UNNAMED is the kind of frames with only a file and an address.
export const UNNAMED = "no name";

// Model answers questions about the samples that match a filter.
export class Model {
  constructor(data) {
    this.data = data;
    // nodes: [parent, name, kind, file, 1 for an interpreter's own, place] by index; a parent comes before its children.
    this.nodes = data.nodes;
    this.compares = data.sides.length === 2;
  }

  // name of a frame; grouped, addresses of one file are one.
  name(node, grouped) {
    const [, name, kind, file] = this.nodes[node];
    if (grouped && this.data.kinds[kind] === UNNAMED) return `[${this.data.files[file] || "file not known"}]`;
    return this.data.names[name];
  }

  kind(node) { return this.data.kinds[this.nodes[node][2]]; }

  // kept returns the samples of a service, a thread and a range of time; -1 means all.
  kept(filter) {
    const { times, samples } = this.data;
    return samples.filter(([service, thread], i) =>
      (filter.service < 0 || service === filter.service) && (filter.thread < 0 || thread === filter.thread) &&
      (filter.from < 0 || times[i] >= filter.from && times[i] <= filter.to));
  }

  // line returns the sum of each time step.
  line(filter) {
    const { times, samples, steps } = this.data;
    const sums = new Array(steps).fill(0);
    samples.forEach(([service, thread, , , value], i) => {
      if ((filter.service < 0 || service === filter.service) && (filter.thread < 0 || thread === filter.thread)) sums[times[i]] += value;
    });
    return sums;
  }

  // path returns the frames of a node from the outermost to the leaf, without services and programs if functions is set. Grouped,
  // neighbours without a name in one file are one frame. Folded, an interpreter's own frames are left out, and the function that
  // they execute gets their time.
  path(node, { grouped, folded }, functions) {
    const path = [];
    for (let i = node; i >= 0; i = this.nodes[i][0]) if (!folded || !this.nodes[i][4]) path.push(i);
    path.reverse();
    const frames = [];
    for (const i of path) {
      const kind = this.kind(i);
      if (functions && (kind === "service" || kind === "program")) continue;
      const name = this.name(i, grouped);
      const last = frames[frames.length - 1];
      if (grouped && kind === UNNAMED && last && last.kind === UNNAMED && last.name === name) continue;
      frames.push({ name, kind, place: this.data.places[this.nodes[i][5]] });
    }
    return frames;
  }

  // tree returns all samples, from the outermost frame on.
  tree(filter) {
    const root = newNode("all", "");
    for (const sample of this.kept(filter)) add(root, this.path(sample[2], filter), sample);
    return root;
  }

  // around returns the callers and the callees of a function as trees that begin with it.
  around(filter, key) {
    const callers = newNode(...parts(key)), callees = newNode(...parts(key));
    for (const sample of this.kept(filter)) {
      const frames = this.path(sample[2], filter, true);
      const first = frames.findIndex((f) => keyOf(f) === key);
      if (first < 0) continue;
      // In a recursion the outermost call counts for the callees, and its callers for the callers.
      add(callers, frames.slice(0, first).reverse(), sample);
      add(callees, frames.slice(first + 1), sample);
    }
    return { callers, callees };
  }

  // table returns each function's own and total amount, and its amount with the library functions that it calls if the data has
  // that. A function counts once per stack.
  table(filter) {
    const rows = new Map();
    const row = (frame) => {
      const key = keyOf(frame);
      if (!rows.has(key)) rows.set(key, { key, name: frame.name, kind: frame.kind, place: "", most: 0, own: [0, 0], self: [0, 0], total: [0, 0] });
      return rows.get(key);
    };
    for (const sample of this.kept(filter)) {
      const frames = this.path(sample[2], filter, true);
      if (!frames.length) continue;
      const leaf = row(frames[frames.length - 1]);
      const own = row(sample[3] < 0 ? NOT_OWN : this.path(sample[3], filter, true).pop() ?? frames[0]);
      const seen = new Set();
      for (let side = 0; side < 2; side++) {
        leaf.self[side] += sample[4 + side] || 0;
        own.own[side] += sample[4 + side] || 0;
      }
      for (const frame of sample[3] < 0 ? [...frames, NOT_OWN] : frames) {
        const r = row(frame);
        if (seen.has(r)) continue;
        seen.add(r);
        stay(r, frame, sample[4] + (sample[5] || 0));
        for (let side = 0; side < 2; side++) r.total[side] += sample[4 + side] || 0;
      }
    }
    return [...rows.values()];
  }

  // shares returns the share of each kind of frames' own amounts, the largest first.
  shares(filter) {
    const kinds = new Map();
    for (const sample of this.kept(filter)) {
      const frames = this.path(sample[2], filter);
      const kind = frames[frames.length - 1].kind;
      kinds.set(kind, (kinds.get(kind) || 0) + sample[4] + (sample[5] || 0));
    }
    return [...kinds].sort((a, b) => b[1] - a[1]);
  }
}

// keyOf distinguishes functions with the same name but different kinds.
export const keyOf = (frame) => `${frame.kind}\n${frame.name}`;
const parts = (key) => { const i = key.indexOf("\n"); return [key.slice(i + 1), key.slice(0, i)]; };
export const nameOf = (key) => parts(key)[0];

// stay keeps the place of the frame with the largest amount.
function stay(at, frame, value) {
  if (value <= at.most || !frame.place) return;
  at.most = value;
  at.place = frame.place;
}

function newNode(name, kind) {
  return { name, kind, place: "", most: 0, value: 0, sides: [0, 0], self: [0, 0], children: [], byKey: new Map() };
}

function add(root, frames, sample) {
  const values = [sample[4], sample[5] || 0];
  let at = root;
  count(at, values);
  for (const frame of frames) {
    const key = keyOf(frame);
    let child = at.byKey.get(key);
    if (!child) {
      child = newNode(frame.name, frame.kind);
      at.byKey.set(key, child);
      at.children.push(child);
    }
    at = child;
    stay(at, frame, values[0] + values[1]);
    count(at, values);
  }
  at.self[0] += values[0];
  at.self[1] += values[1];
}

// A frame's width is its amount on both sides, so that functions that have vanished are visible, too.
function count(node, values) {
  node.value += values[0] + values[1];
  node.sides[0] += values[0];
  node.sides[1] += values[1];
}

// matcher returns a test of names: a part of them in any case, or /an expression/. An invalid expression matches as text.
export function matcher(term) {
  if (!term) return () => false;
  const expression = /^\/(.+)\/$/.exec(term);
  if (expression) {
    try {
      const re = new RegExp(expression[1]);
      return (name) => re.test(name);
    } catch { /* as text, then */ }
  }
  const lower = term.toLowerCase();
  return (name) => name.toLowerCase().includes(lower);
}

// found returns the amount in and below the matching frames of a tree, and the number of matching functions. Nested matches count
// once.
export function found(tree, match) {
  const names = new Set();
  const sides = [0, 0];
  const work = [[tree, false]];
  while (work.length) {
    const [node, inside] = work.pop();
    const hit = node !== tree && match(node.name);
    if (hit) {
      names.add(node.name);
      if (!inside) for (const side of [0, 1]) sides[side] += node.sides[side];
    }
    for (const child of node.children) work.push([child, inside || hit]);
  }
  return { sides, functions: names.size };
}

// hash makes a short text of a path of frames, for links.
export function hash(text) {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return (h >>> 0).toString(16);
}

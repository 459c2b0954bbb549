// The state of the view, which a link restores. It follows the # in the address.
export const initial = (data) => ({ view: "flame", search: "", service: -1, thread: -1, from: -1, to: -1, grouped: true, folded: data.folded, fn: "", zoom: "", theme: "", sort: "" });

export function parse(fragment, data) {
  const state = initial(data);
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  if (["flame", "table", "around"].includes(given.get("view"))) state.view = given.get("view");
  state.search = given.get("search") ?? "";
  state.service = data.services.indexOf(given.get("service"));
  state.thread = data.threads.indexOf(given.get("thread"));
  const [, from, to] = /^(\d+)-(\d+)$/.exec(given.get("time") ?? "") ?? [];
  if (to !== undefined && Number(from) <= Number(to) && Number(to) < (data.steps || 0)) [state.from, state.to] = [Number(from), Number(to)];
  state.grouped = given.get("grouped") !== "no";
  if (given.has("folded")) state.folded = given.get("folded") !== "no";
  state.fn = given.get("fn") ?? "";
  state.zoom = given.get("zoom") ?? "";
  if (["light", "dark"].includes(given.get("theme"))) state.theme = given.get("theme");
  if (["own", "self", "total", "name", "change"].includes(given.get("sort"))) state.sort = given.get("sort");
  if (state.view === "around" && !state.fn) state.view = "flame";
  return state;
}

export function format(state, data) {
  const out = new URLSearchParams();
  const start = initial(data);
  for (const key of ["view", "search", "fn", "zoom", "theme", "sort"]) if (state[key] !== start[key]) out.set(key, state[key]);
  if (state.service >= 0) out.set("service", data.services[state.service]);
  if (state.thread >= 0) out.set("thread", data.threads[state.thread]);
  if (state.from >= 0) out.set("time", `${state.from}-${state.to}`);
  if (!state.grouped) out.set("grouped", "no");
  if (state.folded !== start.folded) out.set("folded", state.folded ? "yes" : "no");
  return out.toString();
}

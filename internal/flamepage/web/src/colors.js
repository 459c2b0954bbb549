import { hash, UNNAMED } from "./model.js";

// A hue and a saturation for each kind of frame. The frame's name sets the shade. Other kinds are grey.
const hues = {
  service: [215, 25], program: [215, 55], kernel: [8, 75], native: [38, 85], go: [188, 70], cpython: [225, 75], jvm: [20, 80],
  v8js: [95, 55], ruby: [345, 75], php: [262, 60], perl: [165, 50], dotnet: [285, 60], beam: [320, 60], [UNNAMED]: [48, 15],
};

// These are readable names of the kinds of frames.
export const labels = {
  service: "service", program: "program", kernel: "kernel", native: "native code", go: "Go", cpython: "Python", jvm: "Java (JVM)",
  v8js: "JavaScript (V8)", ruby: "Ruby", php: "PHP", perl: "Perl", dotnet: ".NET", beam: "Erlang", [UNNAMED]: "without a name", "": "other",
};

export const label = (kind) => labels[kind] ?? kind;

// The text on a frame is near black in the light theme and near white in the dark one. These lightnesses give a contrast of at
// least 4.5.
const lightness = (dark, name) => {
  const shade = parseInt(hash(name).slice(-2), 16) % 5;
  return dark ? 24 + shade * 2 : 74 + shade * 2.5;
};

export function colorOf(kind, name, dark) {
  const [hue, saturation] = hues[kind] ?? [0, 0];
  return `hsl(${hue} ${dark ? saturation * 0.7 : saturation}% ${lightness(dark, name)}%)`;
}

// changeColor is for frames of a comparison: red for more, blue for less, stronger for larger changes.
export function changeColor([before, after], dark) {
  const all = before + after;
  const change = all ? (after - before) / all : 0;
  const strength = Math.min(1, Math.abs(change) * 2);
  const hue = change > 0 ? 8 : 215;
  return dark ? `hsl(${hue} ${70 * strength}% ${26 + 6 * strength}%)` : `hsl(${hue} ${80 * strength}% ${88 - 14 * strength}%)`;
}

// Bundles the page's script and style into the given folder. It adds the licences of the packages, and a checksum of the sources,
// by which a test finds a stale bundle.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2];
mkdirSync(out, { recursive: true });
const result = await build({
  entryPoints: [join(here, "src/app.js")], bundle: true, minify: true, format: "iife", target: ["es2022"], charset: "utf8",
  legalComments: "none", metafile: true, write: false, outfile: "page.js", absWorkingDir: here,
});
for (const file of result.outputFiles) writeFileSync(join(out, file.path.endsWith(".css") ? "page.css" : "page.js"), file.contents);

// A text that several packages share appears once, below all of their names.
const packages = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (found) packages.add(found[1]);
}
const texts = new Map();
for (const name of [...packages].sort()) {
  const dir = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  const file = readdirSync(dir).find((f) => /^licen[cs]e/i.test(f));
  if (!file) throw new Error(`${name} has no licence file`);
  const text = readFileSync(join(dir, file), "utf8").trim();
  texts.set(text, [...(texts.get(text) ?? []), `${name} ${about.version} (${about.license})`]);
}
writeFileSync(join(out, "licences.txt"), [...texts].map(([text, names]) => `${names.join(", ")}\n\n${text}\n`).join(`\n${"-".repeat(80)}\n\n`));

const sum = createHash("sha256");
for (const file of ["package-lock.json", "build.mjs", ...readdirSync(join(here, "src")).sort().map((f) => `src/${f}`)]) {
  sum.update(`${file}\n`).update(readFileSync(join(here, file)));
}
writeFileSync(join(out, "sources.sha256"), `${sum.digest("hex")}\n`);

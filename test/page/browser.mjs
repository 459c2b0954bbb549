// Checks the pages of a folder in headless Chromium for page_test.go. It writes pictures to a second folder.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [dir, shots] = process.argv.slice(2);
const require = createRequire(join(process.env.PAGE_MODULES, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
let passed = 0, failed = 0;

// open shows a page, and fails if it logs, requests or throws anything.
async function open(name, { fragment = "", width = 1200, height = 800, dark = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", offline: true, timezoneId: "UTC" });
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => { if (message.type() !== "log") page.problems.push(message.text()); });
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("request", (request) => { if (!/^(file|data):/.test(request.url())) page.problems.push(`it loads ${request.url()}`); });
  await page.goto(pathToFileURL(join(dir, name)).href + fragment);
  await page.waitForSelector("g.frame, #table table");
  return page;
}

async function check(what, name, options, run) {
  const page = await open(name, options);
  try {
    await run(page);
    assert.deepEqual(page.problems, []);
    passed++;
    console.log(`ok   ${what}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${what}\n${error.stack}`);
  }
  await page.context().close();
}

const frames = (page, root = "#flame") => page.$$eval(`${root} g.frame`, (list) => list.map((g) => g.getAttribute("aria-label")));
const focused = (page) => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
const frame = (page, name, root = "#flame") => page.locator(`${root} g.frame[aria-label^="${name}"]`).first();
const text = (page, selector) => page.textContent(selector);

await check("the graph shows every function with its share", "one.html", {}, async (page) => {
  const all = await frames(page);
  assert.ok(all.includes("all: 100.0 %, 10.0 s; itself 0.0 %, 0 s") || all.some((l) => l.startsWith("all: 100.0 %, 10 s")), all.join("\n"));
  assert.ok(all.some((l) => /^main\.hashOrder, Go in \/src\/order\.go:12: 30\.0 %, 3 s; itself 30\.0 %, 3 s; 300 samples, ±3 points$/.test(l)), all.join("\n"));
  assert.ok(all.some((l) => /^shop, service: 70\.0 %/.test(l)));
});

await check("addresses without a name are one frame for a file, and single on demand", "one.html", {}, async (page) => {
  let all = (await frames(page)).filter((l) => l.includes("libz"));
  assert.equal(all.length, 1);
  assert.match(all[0], /^\[libz\.so\.1\], without a name: 10\.0 %/);
  await page.uncheck("#grouped");
  all = (await frames(page)).filter((l) => l.includes("libz"));
  assert.equal(all.length, 3);
  assert.ok(all.some((l) => l.startsWith("libz.so.1+0x20")));
});

await check("an interpreter's own frames are folded into the function that they execute, and shown on demand", "one.html", {}, async (page) => {
  let all = await frames(page);
  assert.ok(!all.some((l) => /long_add|list_sort/.test(l)), all.join("\n"));
  assert.ok(all.some((l) => /^rank, Python: 30\.0 %, 3 s; itself 30\.0 %/.test(l)), all.join("\n"));
  await page.uncheck("#folded");
  all = await frames(page);
  assert.ok(all.some((l) => l.startsWith("long_add, native code: 20.0 %")), all.join("\n"));
  assert.match(page.url(), /folded=no/);
  await page.reload();
  assert.equal(await page.isChecked("#folded"), false);
  await page.click("#reset");
  assert.equal(await page.isChecked("#folded"), true);
});

await check("waits lead with the function of the program's own", "waits.html", { fragment: "#view=table" }, async (page) => {
  const rows = await page.$$eval("#table tbody tr", (list) => list.map((tr) => [...tr.cells].map((c) => c.textContent)));
  assert.deepEqual(rows[0], ["30.0 %  3 s", "0.0 %  0 s", "30.0 %  3 s", "0", "main.ask"]);
  assert.equal(rows[1][4], "main.main", rows.join("\n"));
  assert.deepEqual(rows[2], ["60.0 %  6 s", "0.0 %  0 s", "60.0 %  6 s", "0", "[no function of its own]"], "a runtime's idle threads come behind the program's own functions");
  assert.equal(rows[3][4], "recv");
  assert.equal(await page.isVisible("#folded"), false, "there is nothing to fold");
  await page.focus("#table tbody button");
  for (let i = 0; i < 2; i++) await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "recv", "the arrow keys pass the row that opens nothing");
  await page.fill("#search", "/recv|no function/");
  assert.equal(await page.locator("#table tbody button[tabindex='0']:enabled").count(), 1, "the Tab key finds the first row that opens");
});

await check("search finds, with sum and share", "one.html", {}, async (page) => {
  await page.fill("#search", "HASHorder");
  assert.equal(await text(page, "#result"), "40.0 % of the samples, 4 s, are in or below 1 function that matches");
  assert.equal(await page.locator("g.frame.found").count(), 2);
  await page.fill("#search", "/^main\\.(sort|audit)/");
  assert.match(await text(page, "#result"), /^30\.0 % of the samples, 3 s, are in or below 2 functions/);
  await page.fill("#search", "rank");
  assert.match(await text(page, "#result"), /^30\.0 % /, "a recursion counts once");
  await page.fill("#search", "/(/");
  assert.equal(await text(page, "#result"), "no function matches");
});

await check("callers and callees open from the graph", "one.html", {}, async (page) => {
  await frame(page, "main.hashOrder").dblclick();
  await page.waitForSelector("#panel-around:not([hidden])");
  assert.equal(await text(page, "#around-title"), "main.hashOrder");
  assert.match(await text(page, "#around-sum"), /^40\.0 %, 4 s in all/);
  const callers = await frames(page, "#callers");
  assert.ok(callers.some((l) => l.startsWith("main.serve, Go: 30.0 %")) && callers.some((l) => l.startsWith("main.audit, Go: 10.0 %")), callers.join("\n"));
  const top = await page.locator("#callers g.frame").evaluateAll((list) => list.map((g) => [g.getAttribute("aria-label"), g.getBoundingClientRect().top]));
  const at = (name) => top.find(([l]) => l.startsWith(name))[1];
  assert.ok(at("main.serve") < at("main.hashOrder"), "callers are above");
});

await check("callers and callees open from the table", "one.html", { fragment: "#view=table" }, async (page) => {
  const rows = await page.$$eval("#table tbody tr", (list) => list.map((tr) => [...tr.cells].map((c) => c.textContent)));
  assert.deepEqual(rows[0], ["40.0 % ±4  4 s", "40.0 %  4 s", "400", "main.hashOrder", "order.go:12"]);
  await page.click("th >> text=Total");
  assert.equal(await page.getAttribute("th:has-text('Total')", "aria-sort"), "descending");
  assert.equal(await text(page, "#table tbody tr:first-child button"), "main.main");
  await page.click("button.function >> text=main.serve");
  const callees = await frames(page, "#callees");
  assert.ok(callees.some((l) => l.startsWith("main.sortOrder, Go: 20.0 %")), callees.join("\n"));
  assert.equal(await focused(page), "main.serve");
});

await check("a click zooms, and the whole graph comes back", "one.html", {}, async (page) => {
  await frame(page, "main.sortOrder").click();
  const wide = await frame(page, "copy_to_user").boundingBox();
  assert.ok(wide.width > 1000, `${wide.width}`);
  assert.match(page.url(), /zoom=/);
  await page.click("#reset");
  assert.ok((await frame(page, "copy_to_user").boundingBox()).width < 400);
});

await check("filters by service and thread", "one.html", {}, async (page) => {
  await page.selectOption("#service", { label: "search" });
  assert.match(await text(page, "#result"), /^3 s in all/);
  assert.ok(!(await frames(page)).some((l) => l.includes("main.")));
  await page.selectOption("#service", { label: "shop" });
  await page.selectOption("#thread", { label: "worker-2" });
  assert.match(await text(page, "#result"), /^1\.?0* s in all/);
  await page.selectOption("#thread", { label: "python3" });
  assert.match(await text(page, "#flame"), /No samples/);
});

await check("a link restores the view", "one.html", {}, async (page) => {
  await page.selectOption("#service", { label: "shop" });
  await page.fill("#search", "serve");
  await frame(page, "main.sortOrder").click();
  const link = page.url(), status = await text(page, "#result"), before = await frames(page);
  const again = await open("one.html", { fragment: link.slice(link.indexOf("#")) });
  assert.equal(await again.inputValue("#search"), "serve");
  assert.equal(await text(again, "#result"), status);
  assert.deepEqual(await frames(again), before);
  assert.ok((await frame(again, "copy_to_user").boundingBox()).width > 1000);
  await again.context().close();
  const around = await open("one.html", { fragment: "#view=around&fn=go%0Amain.serve&theme=dark" });
  assert.equal(await text(around, "#around-title"), "main.serve");
  assert.equal(await around.getAttribute("html", "data-theme"), "dark");
  await around.context().close();
});

await check("the keyboard walks", "one.html", {}, async (page) => {
  assert.ok(await page.locator("[tabindex='0']:visible, input:visible, select:visible:enabled, button:visible:not([tabindex='-1'])").count() < 15, "few stops of the Tab key");
  await frame(page, "all").focus();
  const walk = [];
  for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp"]) {
    await page.keyboard.press(key);
    walk.push((await focused(page)).split(",")[0]);
  }
  assert.deepEqual(walk, ["shop", "main.main", "main.serve", "main.hashOrder", "main.sortOrder", "main.hashOrder", "main.serve"]);
  assert.match(await text(page, "#details"), /^main\.serve, Go: 60\.0 %/);
  await page.keyboard.press("Enter");
  assert.ok((await frame(page, "main.hashOrder").boundingBox()).width > 500);
  assert.match(await focused(page), /^main\.serve/);
  await page.keyboard.press("Escape");
  assert.match(await focused(page), /^main\.serve/);
  await page.keyboard.press("o");
  assert.equal(await text(page, "#around-title"), "main.serve");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.focus("#tab-around");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-table");
  await page.focus("#table tbody button");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "around-title");
});

await check("colours tell the kinds apart, with a legend", "one.html", {}, async (page) => {
  const legend = await page.$$eval("#legend li", (list) => list.map((li) => li.textContent));
  assert.deepEqual(legend, ["Go 40.0 %", "Python 30.0 %", "kernel 20.0 %", "without a name 10.0 %"]);
  const fill = (name) => frame(page, name).locator("rect").evaluate((r) => getComputedStyle(r).fill);
  assert.notEqual(await fill("copy_to_user"), await fill("rank"));
});

await check("the difference shows", "two.html", {}, async (page) => {
  const all = await frames(page);
  assert.ok(all.includes("main.hashOrder, Go in /src/order.go:12: before 300 ms per second, after 100 ms per second, -67 %"), all.join("\n"));
  assert.ok(all.includes("main.cacheOrder, Go: before 0 ms per second, after 300 ms per second, new"), all.join("\n"));
  const [less, more] = await Promise.all(["main.hashOrder", "main.cacheOrder"].map((n) => frame(page, n).locator("rect").evaluate((r) => getComputedStyle(r).fill.match(/\d+/g).map(Number))));
  assert.ok(less[2] > less[0] && more[0] > more[2], `${less} ${more}`);
  await page.click("#tab-table");
  await page.click("th >> text=Change");
  const rows = await page.$$eval("#table tbody tr", (list) => list.map((tr) => [...tr.cells].map((c) => c.textContent)));
  assert.deepEqual(rows.slice(0, 2).map((r) => r[3]).sort(), ["main.cacheOrder", "main.hashOrder"]);
  assert.deepEqual(rows.find((r) => r[3] === "main.cacheOrder"), ["0", "300", "+300", "main.cacheOrder", ""]);
  await page.fill("#search", "Order");
  assert.equal(await text(page, "#result"), "in or below 3 functions that match: before 600 ms per second, after 400 ms per second, -33 %");
});

await check("a range of the line of time is chosen with the pointer, and a link keeps it", "time.html", {}, async (page) => {
  assert.match(await text(page, "#range"), /^12:00:00 to 13:00:00: 9 s$/);
  assert.equal(await page.getAttribute("#line", "aria-label"), "Values over time, at most 4 s in 600 s");
  const box = await page.locator("#line").boundingBox();
  const at = (share) => box.x + share * box.width;
  await page.mouse.move(at(0.55), box.y + 30);
  await page.mouse.down();
  await page.mouse.move(at(0.60), box.y + 30);
  await page.mouse.up();
  assert.match(await text(page, "#range"), /^12:30:00 to 12:40:00: 4 s$/);
  assert.ok((await frames(page)).some((l) => /^main\.slow, Go: 75\.0 %, 3 s/.test(l)));
  assert.match(page.url(), /time=3-3/);
  await page.reload();
  await page.waitForSelector("g.frame");
  assert.match(await text(page, "#range"), /: 4 s$/);
  await page.click("#tab-table");
  assert.match(await text(page, "#table tbody tr:first-child"), /main\.slow/);
  await page.click("#whole");
  assert.match(await text(page, "#range"), /: 9 s$/);
});

await check("a range of the line of time is chosen with the keyboard", "time.html", {}, async (page) => {
  await page.focus("#to");
  for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowLeft");
  assert.equal(await page.getAttribute("#to", "aria-valuetext"), "12:30:00");
  assert.ok(!(await frames(page)).some((l) => l.startsWith("main.slow")));
  assert.match(await text(page, "#range"), /^12:00:00 to 12:30:00: 3 s$/);
  await page.focus("#from");
  await page.keyboard.press("End");
  assert.match(await text(page, "#range"), /^12:50:00 to 13:00:00: 1 s$/);
  assert.equal(await page.evaluate(() => document.activeElement.id), "from");
});

await check("a page without times has no line", "one.html", {}, async (page) => {
  assert.equal(await page.isVisible("#time"), false);
});

await check("names from a workload are text", "evil.html", {}, async (page) => {
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  await page.click("#tab-table");
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  assert.ok((await text(page, "#table")).includes("<img src=x"));
});

await check("the policy forbids scripts and connections", "one.html", {}, async (page) => {
  const refused = await page.evaluate(async () => {
    const script = document.createElement("script");
    script.textContent = "window.pwned = 1";
    document.body.append(script);
    const sent = await fetch("http://127.0.0.1:1/").then(() => true, () => false);
    return { ran: window.pwned === 1, sent };
  });
  assert.deepEqual(refused, { ran: false, sent: false });
  assert.ok(page.problems.every((p) => /Content Security Policy|Failed to load/.test(p)), page.problems.join("\n"));
  page.problems = [];
});

await check("licences can be read", "one.html", {}, async (page) => {
  await page.click("#licences-open");
  assert.match(await text(page, "#licences"), /d3-flame-graph [\d.]+ \(Apache-2\.0\)[^]*Mike Bostock|Mike Bostock[^]*d3-flame-graph/);
});

for (const [name, fragment] of [["one.html", ""], ["one.html", "#view=table"], ["one.html", "#view=around&fn=go%0Amain.serve"], ["time.html", "#time=2-3"], ["two.html", ""], ["two.html", "#view=table"]]) {
  for (const options of [{}, { dark: true }, { width: 400 }]) {
    const what = `${name}${fragment} ${options.dark ? "dark" : options.width ?? "light"}`;
    await check(`axe-core finds nothing in ${what}`, name, { ...options, fragment }, async (page) => {
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(violations.map((v) => `${v.impact} ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 150)} ${n.failureSummary}`).join("; ")}`), []);
      for (const selector of ["html", "#table"]) {
        assert.ok(await page.$eval(selector, (e) => e.scrollWidth <= innerWidth), `${selector} is not wider than the window`);
      }
      if (shots) {
        mkdirSync(shots, { recursive: true });
        await page.waitForTimeout(300);
        await page.screenshot({ path: join(shots, `${what.replace(/[^a-z0-9]+/gi, "-")}.png`) });
      }
    });
  }
}

await browser.close();
console.log(`checks: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);

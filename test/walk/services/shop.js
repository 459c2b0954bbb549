// A shop that keeps an account of the work of each of its functions: see ../doc.go.
'use strict';
const fs = require('fs');
const readline = require('readline');

// The functions and their amounts, by question. Node.js has no locks.
const account = { cpu: {}, offcpu: {}, lock: {}, alloc: {}, pagefault: {} };
const pageSize = 4096;

function add(question, name, amount) {
  account[question][name] = (account[question][name] || 0) + amount;
}

// call calls a function and accounts for what the process did meanwhile.
function call(f, ...args) {
  const wall = process.hrtime.bigint();
  const before = process.resourceUsage();
  f(...args);
  const after = process.resourceUsage();
  const cpu = (after.userCPUTime + after.systemCPUTime - before.userCPUTime - before.systemCPUTime) / 1e6;
  add('cpu', f.name, cpu);
  add('offcpu', f.name, Math.max(0, Number(process.hrtime.bigint() - wall) / 1e9 - cpu));
  add('pagefault', f.name, after.minorPageFault - before.minorPageFault);
}

function priceOrder(rounds) {
  let total = 0;
  for (let i = 0; i < rounds; i++) total = (total * 31 + i) % 1000003;
  return total;
}

function renderInvoice(rounds) {
  let text = 1;
  for (let i = 0; i < rounds; i++) text = Math.imul(text ^ i, 16777619) % 8191;
  return text;
}

const never = new Int32Array(new SharedArrayBuffer(4));

function askBank() {
  Atomics.wait(never, 0, 0, 30);
}

function askStock() {
  Atomics.wait(never, 0, 0, 10);
}

// keepBasket allocates 4 MB.
function keepBasket() {
  for (let i = 0; i < 100; i++) Buffer.allocUnsafeSlow(40000);
  add('alloc', 'keepBasket', 100 * 40000);
}

// keepReceipt allocates 1 MB.
function keepReceipt() {
  for (let i = 0; i < 100; i++) Buffer.allocUnsafeSlow(10000);
  add('alloc', 'keepReceipt', 100 * 10000);
}

function touch(name, pages) {
  const fresh = Buffer.alloc(pages * pageSize);
  add('alloc', name, pages * pageSize);
  for (let i = 0; i < pages; i++) fresh[i * pageSize] = 1;
}

// The allocator never keeps blocks of this size.
function loadCatalogue() {
  touch('loadCatalogue', 12000);
}

function loadPrices() {
  touch('loadPrices', 9000);
}

function serve() {
  for (const end = Date.now() + 200; Date.now() < end;) {
    call(priceOrder, 6e6);
    call(renderInvoice, 1e6);
    call(askBank);
    call(askStock);
    call(keepBasket);
    call(keepReceipt);
  }
  call(loadCatalogue);
  call(loadPrices);
  setImmediate(serve);
}

readline.createInterface({ input: process.stdin })
  .on('line', () => fs.writeSync(1, JSON.stringify(account) + '\n'))
  .on('close', () => process.exit(0));
serve();

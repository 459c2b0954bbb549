// As wait.c, for Node.
const word = new Int32Array(new SharedArrayBuffer(4));
const spent = [0n, 0n, 0n];

function wait(which, ms) {
  const begin = process.hrtime.bigint();
  Atomics.wait(word, 0, 0, ms);
  spent[which] += process.hrtime.bigint() - begin;
}

function heavy() { wait(0, 30); }
function light() { wait(1, 15); }
function rest() { wait(2, 5); }
function work() { heavy(); light(); rest(); }

for (;;) {
  work();
  require('fs').writeSync(1, `${BigInt(Date.now()) * 1000000n} ${spent.join(' ')}\n`);
}

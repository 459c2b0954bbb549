// Like wait.c, for Node.js.
const word = new Int32Array(new SharedArrayBuffer(4));
const spent = [0n, 0n, 0n];

function wait(which, ms) {
  const begin = process.hrtime.bigint();
  Atomics.wait(word, 0, 0, ms);
  spent[which] += process.hrtime.bigint() - begin;
}

function heavy() { wait(0, 180); }
function light() { wait(1, 90); }
function rest() { wait(2, 30); }
function work() { heavy(); light(); rest(); }

for (let rounds = process.argv[2]; rounds > 0; rounds--) {
  work();
}
console.log(spent.join(' '));

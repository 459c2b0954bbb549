// Like touch.c, for Node.js. The allocator never reuses the memory of such large blocks.
const piece = 40 << 20;
const word = new Int32Array(new SharedArrayBuffer(4));
const touched = [0, 0, 0];

function touch(which, pages) {
  const fresh = new Uint8Array(piece);
  for (let i = 0; i < pages; i++) {
    fresh[i * 4096] = 1;
  }
  touched[which] += pages;
}

function heavy() { touch(0, 600); }
function light() { touch(1, 300); }
function rest() { touch(2, 100); }
function work() { heavy(); light(); rest(); }

for (let rounds = process.argv[2]; rounds > 0; rounds--) {
  work();
  Atomics.wait(word, 0, 0, 60);
}
console.log(touched.join(' '));

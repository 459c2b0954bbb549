// hashOrders uses half of the CPU time, sortOrders 30 % and renderInvoices 20 %.
let sink = 0;
function hashOrders() {
  for (let i = 0; i < 1e6; i++) sink = (sink ^ i) * 31 | 0;
}
function sortOrders() {
  for (let i = 0; i < 1e6; i++) sink = (sink ^ i) * 37 | 0;
}
function renderInvoices() {
  for (let i = 0; i < 1e6; i++) sink = (sink ^ i) * 41 | 0;
}
const used = () => { const u = process.cpuUsage(); return u.user + u.system; };
for (;;) {
  for (const [work, percent] of [[hashOrders, 50], [sortOrders, 30], [renderInvoices, 20]]) {
    const until = used() + percent * 1000;
    while (used() < until) work();
  }
}

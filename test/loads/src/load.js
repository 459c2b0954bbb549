// 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
'use strict'
const used = { heavy: 0, light: 0, rest: 0 }
const due = { heavy: 0, light: 0, rest: 0 }

function cpu () {
  const u = process.cpuUsage()
  return u.user + u.system
}

function heavy () {
  due.heavy += 6000
  while (used.heavy < due.heavy) {
    const start = cpu()
    let x = 1
    for (let i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff
    used.heavy += cpu() - start
    module.exports = x
  }
}

function light () {
  due.light += 3000
  while (used.light < due.light) {
    const start = cpu()
    let x = 1
    for (let i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff
    used.light += cpu() - start
    module.exports = x
  }
}

function rest () {
  due.rest += 1000
  while (used.rest < due.rest) {
    const start = cpu()
    let x = 1
    for (let i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff
    used.rest += cpu() - start
    module.exports = x
  }
}

function work () {
  heavy()
  light()
  rest()
}

function step () {
  work()
}

function run () {
  step()
  require('fs').writeSync(1, 'ready\n')
  for (;;) step()
}

run()

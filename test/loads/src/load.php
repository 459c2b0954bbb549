<?php
// 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
$used = ['heavy' => 0, 'light' => 0, 'rest' => 0];
$due = ['heavy' => 0, 'light' => 0, 'rest' => 0];

function cpu() {
    $r = getrusage();
    return ($r['ru_utime.tv_sec'] + $r['ru_stime.tv_sec']) * 1000000 + $r['ru_utime.tv_usec'] + $r['ru_stime.tv_usec'];
}

function heavy() {
    global $used, $due;
    $due['heavy'] += 6000;
    while ($used['heavy'] < $due['heavy']) {
        $start = cpu();
        for ($i = 0, $x = 1; $i < 20000; $i++) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used['heavy'] += cpu() - $start;
    }
}

function light() {
    global $used, $due;
    $due['light'] += 3000;
    while ($used['light'] < $due['light']) {
        $start = cpu();
        for ($i = 0, $x = 1; $i < 20000; $i++) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used['light'] += cpu() - $start;
    }
}

function rest() {
    global $used, $due;
    $due['rest'] += 1000;
    while ($used['rest'] < $due['rest']) {
        $start = cpu();
        for ($i = 0, $x = 1; $i < 20000; $i++) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used['rest'] += cpu() - $start;
    }
}

function work() {
    heavy();
    light();
    rest();
}

function step() {
    work();
}

function run() {
    step();
    echo "ready\n";
    while (true) {
        step();
    }
}

run();

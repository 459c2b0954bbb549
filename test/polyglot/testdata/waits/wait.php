<?php
// Like wait.c, in PHP.
$spent = [0, 0, 0];

function waiting($which, $ms)
{
    global $spent;
    $begin = hrtime(true);
    usleep($ms * 1000);
    $spent[$which] += hrtime(true) - $begin;
}

function heavy() { waiting(0, 180); }
function light() { waiting(1, 90); }
function rest() { waiting(2, 30); }
function work() { heavy(); light(); rest(); }

for ($rounds = $argv[1]; $rounds > 0; $rounds--) {
    work();
}
printf("%d %d %d\n", ...$spent);

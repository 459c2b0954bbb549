<?php
// As wait.c, in PHP.
$spent = [0, 0, 0];

function waiting($which, $ms)
{
    global $spent;
    $begin = hrtime(true);
    usleep($ms * 1000);
    $spent[$which] += hrtime(true) - $begin;
}

function heavy() { waiting(0, 30); }
function light() { waiting(1, 15); }
function rest() { waiting(2, 5); }
function work() { heavy(); light(); rest(); }

while (true) {
    work();
    printf("%d %d %d %d\n", microtime(true) * 1e9, ...$spent);
}

<?php
// Like touch.c, in PHP, with the C library's allocator, which returns large strings at once.
$touched = [0, 0, 0];

function touching($which, $pages)
{
    global $touched;
    $fresh = str_repeat("\0", $pages * 4096);
    unset($fresh);
    $touched[$which] += $pages;
}

function heavy() { touching(0, 600); }
function light() { touching(1, 300); }
function rest() { touching(2, 100); }
function work() { heavy(); light(); rest(); }

for ($rounds = $argv[1]; $rounds > 0; $rounds--) {
    work();
    usleep(60000);
}
printf("%d %d %d\n", ...$touched);

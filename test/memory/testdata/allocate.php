#!/usr/bin/php
<?php
// allocate.php SECONDS PAUSE ROUNDS: allocate.c in PHP. Start it with USE_ZEND_ALLOC=0,
// so that all memory comes from malloc. A string takes 25 bytes more than its length.
$rounds = (int) $argv[3];
$pause = (int) $argv[2];
$kept = array_fill(0, $rounds, null);

function allocate($size) { return str_repeat("x", $size - 25); }
function allocate_large() { allocate(6000); }

function allocate_middle()
{
    for ($i = 0; $i < 3; $i++) {
        allocate(1000);
    }
}

function leak_some($n)
{
    global $kept;
    $kept[$n] = allocate(1000);
}

function main()
{
    global $rounds, $pause;
    echo "ready\n";
    fgets(STDIN);
    for ($n = 0; $n < $rounds; $n++) {
        allocate_large();
        allocate_middle();
        leak_some($n);
        usleep($pause);
    }
    printf("allocate_large %d %d\n", 6000 * $rounds, $rounds);
    printf("allocate_middle %d %d\n", 3000 * $rounds, 3 * $rounds);
    printf("leak_some %d %d\n", 1000 * $rounds, $rounds);
    fgets(STDIN);
}

main();

# 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_PROCESS_CPUTIME_ID);
$| = 1;

my %used = (heavy => 0, light => 0, rest => 0);
my %due = (heavy => 0, light => 0, rest => 0);

sub heavy {
    $due{heavy} += 0.006;
    while ($used{heavy} < $due{heavy}) {
        my $start = clock_gettime(CLOCK_PROCESS_CPUTIME_ID);
        my $x = 1;
        for my $i (0 .. 5000) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used{heavy} += clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $start;
    }
}

sub light {
    $due{light} += 0.003;
    while ($used{light} < $due{light}) {
        my $start = clock_gettime(CLOCK_PROCESS_CPUTIME_ID);
        my $x = 1;
        for my $i (0 .. 5000) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used{light} += clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $start;
    }
}

sub rest {
    $due{rest} += 0.001;
    while ($used{rest} < $due{rest}) {
        my $start = clock_gettime(CLOCK_PROCESS_CPUTIME_ID);
        my $x = 1;
        for my $i (0 .. 5000) {
            $x = ($x * 31 + $i) & 0xffffff;
        }
        $used{rest} += clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $start;
    }
}

sub work {
    heavy();
    light();
    rest();
}

sub step {
    work();
}

sub run {
    step();
    print "ready\n";
    step() while 1;
}

run();

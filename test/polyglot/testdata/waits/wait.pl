# Like wait.c, in Perl.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

my @spent = (0, 0, 0);

sub pause {
    my ($which, $ms) = @_;
    my $begin = clock_gettime(CLOCK_MONOTONIC);
    usleep($ms * 1000);
    $spent[$which] += 1e9 * (clock_gettime(CLOCK_MONOTONIC) - $begin);
}

sub heavy { pause(0, 180) }
sub light { pause(1, 90) }
sub rest  { pause(2, 30) }
sub work  { heavy(); light(); rest() }

work() for 1 .. $ARGV[0];
printf "%d %d %d\n", @spent;

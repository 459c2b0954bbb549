# Like touch.c, in Perl. The allocator returns large strings at once.
use strict;
use warnings;

my @touched = (0, 0, 0);

sub touch {
    my ($which, $pages) = @_;
    my $fresh = "\0" x ($pages * 4096);
    undef $fresh;
    $touched[$which] += $pages;
}

sub heavy { touch(0, 600) }
sub light { touch(1, 300) }
sub rest  { touch(2, 100) }
sub work  { heavy(); light(); rest() }

for (1 .. $ARGV[0]) {
    work();
    select undef, undef, undef, 0.06;
}
print "@touched\n";

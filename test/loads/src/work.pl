# Does a little of what ordinary Perl programs do, in turn.
use strict;
use warnings;
use List::Util qw(sum max first shuffle reduce);
use POSIX qw(floor strftime);
use Data::Dumper;

$| = 1;
my $n = 0;

sub orders {
    my ($count) = @_;
    return map {
        { id => $_, name => "order-" . $_ * 7919 % 1009, price => sqrt($_ + 1) * 1.37, lines => [ map { sprintf "%5d|%x|%.3f", $_, $_ * 3, $_ / 7 } 1 .. $_ % 5 ] }
    } 1 .. $count;
}

sub texts {
    my @all = @_;
    my $s = join "\n", map { "$_->{name}: $_->{price} " . join ",", @{ $_->{lines} } } @all;
    my @found = $s =~ /order-(\d*7)\b/g;
    ( my $t = $s ) =~ s/(\w+)-(\d+)/$2:\u$1/g;
    $t =~ tr/a-m/n-z/;
    my $w = 0;
    while ( $s =~ /\G(?:([a-z]+)|(\d+(?:\.\d+)?)|([^a-z\d]))/gc ) { $w += defined $2 ? $2 : length( $1 // $3 ) }
    return @found + length( lc $t ) + length( ucfirst reverse $s ) + index( $s, "order-99" ) + rindex( $s, "," ) + $w + length sprintf "%-30s|%+08.3e|%vd", substr( $s, 5, 20 ), $w, "1.2.3";
}

sub collected {
    my @all = @_;
    my ( %by, %seen );
    push @{ $by{ $_->{name} } }, $_ for @all;
    $seen{$_}++ for map { split //, $_->{name} } @all;
    my @sorted = sort { $a->{price} <=> $b->{price} || $a->{name} cmp $b->{name} } shuffle @all;
    my @keys   = sort { $seen{$b} <=> $seen{$a} || $a cmp $b } keys %seen;
    my @part   = splice @sorted, 10, 20, reverse @sorted[ 3 .. 9 ];
    delete @by{ grep { /7$/ } keys %by };
    while ( my ( $k, $v ) = each %by ) { $n += scalar @$v if exists $seen{ substr $k, -1 } }
    local $Data::Dumper::Sortkeys = 1;
    return @keys + @part + sum( map { $_->{id} } @sorted ) + length Dumper( @all[ 0 .. 5 ] );
}

sub numbers {
    my $bits = unpack "%32C*", pack( "NnCa*w", 123456, 77, 5, "text" x 40, 300 );
    my $x    = reduce { ( $a * 31 + $b ) % 1000003 } 1 .. 300;
    $x ^= ( $_ << 3 ) & 0xff | hex sprintf "%x", $_ for 1 .. 100;
    return $bits + $x + floor( atan2( $x, 3 ) * exp 1.5 ) + vec( "abc", 1, 8 ) + length strftime( "%Y-%m-%dT%H:%M:%S", gmtime $x );
}

package Cart;
sub new { my ( $class, %o ) = @_; return bless {%o}, $class }
sub add { my ( $self, $x ) = @_; $self->{total} += $x; return $self }
use overload '+' => sub { Cart->new( total => $_[0]{total} + ( ref $_[1] ? $_[1]{total} : $_[1] ) ) }, '""' => sub { "cart of $_[0]{total}" };

package main;

sub compiled {
    my $code = eval 'sub { my @l = map { $_ * ' . $n % 9 . ' } grep { $_ & 1 } @_; return wantarray ? @l : scalar @l }' or die;
    my $cart = Cart->new( total => 1 );
    $cart->add($_) for 1 .. 50;
    my $got = eval { die { code => 7 } if $cart->can("add"); 1 } || $@->{code};
    return $code->( 1 .. 40 ) + length( "" . ( $cart + $cart ) ) + $got;
}

for ( my $round = 0 ; ; $round++ ) {
    my @all = orders( 150 + $round % 20 );
    $n += texts(@all) + collected(@all) + numbers() + compiled();
    print "ready\n" unless $round;
}

#!/usr/bin/ruby
# allocate.rb SECONDS PAUSE ROUNDS: allocate.c in Ruby. A string takes a byte more than its length.
$rounds = ARGV[2].to_i
$pause = ARGV[1].to_i / 1e6
$kept = Array.new($rounds)

def allocate(size) = "x" * (size - 1)

def allocate_large
  allocate(6000)
end

def allocate_middle
  3.times { allocate(1000) }
end

def leak_some(n)
  $kept[n] = allocate(1000)
end

def main
  $stdout.sync = true
  puts "ready"
  $stdin.gets
  $rounds.times do |n|
    allocate_large
    allocate_middle
    leak_some(n)
    sleep($pause)
  end
  puts "allocate_large #{6000 * $rounds} #{$rounds}"
  puts "allocate_middle #{3000 * $rounds} #{3 * $rounds}"
  puts "leak_some #{1000 * $rounds} #{$rounds}"
  $stdin.gets
end

main

# Like wait.c, in Ruby.
$spent = [0, 0, 0]

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)

def wait(which, seconds)
  start = now
  sleep(seconds)
  $spent[which] += now - start
end

def heavy
  wait(0, 0.18)
end

def light
  wait(1, 0.09)
end

def rest
  wait(2, 0.03)
end

def work
  heavy
  light
  rest
end

ARGV[0].to_i.times { work }
puts $spent.join(" ")

# 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
$stdout.sync = true
$used = { heavy: 0.0, light: 0.0, rest: 0.0 }
$due = { heavy: 0.0, light: 0.0, rest: 0.0 }

def heavy
  $due[:heavy] += 0.006
  while $used[:heavy] < $due[:heavy]
    start = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    i = 0
    x = 1
    while i < 5000
      x = (x * 31 + i) & 0xffffff
      i += 1
    end
    $used[:heavy] += Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - start
  end
end

def light
  $due[:light] += 0.003
  while $used[:light] < $due[:light]
    start = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    i = 0
    x = 1
    while i < 5000
      x = (x * 31 + i) & 0xffffff
      i += 1
    end
    $used[:light] += Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - start
  end
end

def rest
  $due[:rest] += 0.001
  while $used[:rest] < $due[:rest]
    start = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    i = 0
    x = 1
    while i < 5000
      x = (x * 31 + i) & 0xffffff
      i += 1
    end
    $used[:rest] += Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - start
  end
end

def work
  heavy
  light
  rest
end

def step
  work
end

def run
  step
  puts "ready"
  step while true
end

run

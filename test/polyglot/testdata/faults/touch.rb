# Like touch.c, in Ruby. A string of zeros is fresh memory, because the allocator returns large strings at once.
$touched = [0, 0, 0]

def touch(which, pages)
  fresh = "\0" * (pages * 4096)
  pages.times { |i| fresh.setbyte(i * 4096, 1) }
  fresh.clear
  $touched[which] += pages
end

def heavy
  touch(0, 600)
end

def light
  touch(1, 300)
end

def rest
  touch(2, 100)
end

def work
  heavy
  light
  rest
end

ARGV[0].to_i.times do
  work
  sleep(0.06)
end
puts $touched.join(" ")

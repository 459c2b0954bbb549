// Allocates as a Rust program does, and prints its counts like allocate.c.
use std::hint::black_box;
use std::io::{stdin, Read};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Count {
    bytes: u64,
    calls: u64,
}

impl Count {
    fn note(&mut self, size: usize) {
        self.bytes += size as u64;
        self.calls += 1;
    }
}

struct Random(u64);

impl Random {
    fn around(&mut self, mean: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        mean / 2 + (self.0 % mean as u64) as usize
    }
}

#[inline(never)]
fn read_orders(size: usize, c: &mut Count) {
    let v: Vec<u8> = Vec::with_capacity(size);
    c.note(size);
    black_box(&v);
}

#[inline(never)]
fn sort_orders(size: usize, c: &mut Count) {
    let b = vec![0u64; size / 8].into_boxed_slice();
    c.note(size / 8 * 8);
    black_box(&b);
}

#[inline(never)]
fn leak_orders(size: usize, c: &mut Count) {
    let b = vec![1u8; size].into_boxed_slice();
    c.note(size);
    black_box(Box::leak(b));
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let seconds: f64 = args[1].parse().unwrap();
    let pause: u64 = args[2].parse().unwrap();
    let mut rounds: i64 = args[3].parse().unwrap();
    let (mut large, mut middle, mut leaked) = (Count::default(), Count::default(), Count::default());
    let mut random = Random(88172645463325252);
    let mut byte = [0u8; 1];
    println!("ready");
    stdin().read(&mut byte).unwrap();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || rounds > 0 {
        rounds -= 1;
        read_orders(random.around(6000), &mut large);
        for _ in 0..3 {
            sort_orders(random.around(1000), &mut middle);
        }
        leak_orders(random.around(1000), &mut leaked);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
    println!("allocate::read_orders {} {}", large.bytes, large.calls);
    println!("allocate::sort_orders {} {}", middle.bytes, middle.calls);
    println!("allocate::leak_orders {} {}", leaked.bytes, leaked.calls);
    stdin().read(&mut byte).unwrap();
}

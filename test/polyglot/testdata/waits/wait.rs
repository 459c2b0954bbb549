// Like wait.c, in Rust.
use std::time::{Duration, Instant};

fn wait(spent: &mut u128, ms: u64) {
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(ms));
    *spent += begin.elapsed().as_nanos();
}

// black_box prevents a tail call, which would remove the function from the stack.
#[inline(never)]
fn heavy(spent: &mut [u128; 3]) { wait(&mut spent[0], 180); std::hint::black_box(spent); }
#[inline(never)]
fn light(spent: &mut [u128; 3]) { wait(&mut spent[1], 90); std::hint::black_box(spent); }
#[inline(never)]
fn rest(spent: &mut [u128; 3]) { wait(&mut spent[2], 30); std::hint::black_box(spent); }
#[inline(never)]
fn work(spent: &mut [u128; 3]) { heavy(spent); light(spent); rest(spent); std::hint::black_box(spent); }

fn main() {
    let mut spent = [0; 3];
    for _ in 0..std::env::args().nth(1).unwrap().parse().unwrap() {
        work(&mut spent);
    }
    println!("{} {} {}", spent[0], spent[1], spent[2]);
}

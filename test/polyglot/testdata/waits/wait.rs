// As wait.c, in Rust.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn wait(spent: &mut u128, ms: u64) {
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(ms));
    *spent += begin.elapsed().as_nanos();
}

#[inline(never)]
fn heavy(spent: &mut [u128; 3]) { wait(&mut spent[0], 30); }
#[inline(never)]
fn light(spent: &mut [u128; 3]) { wait(&mut spent[1], 15); }
#[inline(never)]
fn rest(spent: &mut [u128; 3]) { wait(&mut spent[2], 5); }
#[inline(never)]
fn work(spent: &mut [u128; 3]) { heavy(spent); light(spent); rest(spent); std::hint::black_box(spent); }

fn main() {
    let mut spent = [0; 3];
    loop {
        work(&mut spent);
        println!("{} {} {} {}", SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos(), spent[0], spent[1], spent[2]);
    }
}

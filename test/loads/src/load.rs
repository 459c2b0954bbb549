// 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
use std::hint::black_box;

#[repr(C)]
struct Timespec {
    sec: i64,
    nsec: i64,
}

extern "C" {
    fn clock_gettime(clock: i32, t: *mut Timespec) -> i32;
}

const PROCESS_CPU_TIME: i32 = 2;

fn cpu() -> i64 {
    let mut t = Timespec { sec: 0, nsec: 0 };
    unsafe { clock_gettime(PROCESS_CPU_TIME, &mut t) };
    t.sec * 1_000_000_000 + t.nsec
}

struct Part {
    used: i64,
    due: i64,
}

#[inline(never)]
fn heavy(p: &mut Part) {
    p.due += 6_000_000;
    while p.used < p.due {
        let start = cpu();
        let mut x = 1u32;
        for i in 0..100_000u32 {
            x = black_box(x.wrapping_mul(31).wrapping_add(i) & 0xffffff);
        }
        p.used += cpu() - start;
    }
}

#[inline(never)]
fn light(p: &mut Part) {
    p.due += 3_000_000;
    while p.used < p.due {
        let start = cpu();
        let mut x = 2u32;
        for i in 0..100_000u32 {
            x = black_box(x.wrapping_mul(31).wrapping_add(i) & 0xffffff);
        }
        p.used += cpu() - start;
    }
}

#[inline(never)]
fn rest(p: &mut Part) {
    p.due += 1_000_000;
    while p.used < p.due {
        let start = cpu();
        let mut x = 3u32;
        for i in 0..100_000u32 {
            x = black_box(x.wrapping_mul(31).wrapping_add(i) & 0xffffff);
        }
        p.used += cpu() - start;
    }
}

#[inline(never)]
fn work(p: &mut [Part; 3]) {
    heavy(&mut p[0]);
    light(&mut p[1]);
    rest(&mut p[2]);
    black_box(p);
}

#[inline(never)]
fn step(p: &mut [Part; 3]) {
    work(p);
    black_box(p);
}

#[inline(never)]
fn run(p: &mut [Part; 3]) {
    step(p);
    println!("ready");
    loop {
        step(p);
    }
}

fn main() {
    let mut p = [Part { used: 0, due: 0 }, Part { used: 0, due: 0 }, Part { used: 0, due: 0 }];
    run(&mut p);
}

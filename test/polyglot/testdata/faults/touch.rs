// Like touch.c, in Rust.
use std::ffi::c_void;

extern "C" {
    fn mmap(at: *mut c_void, size: usize, protection: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, size: usize) -> i32;
}

const READ_WRITE: i32 = 3;
const PRIVATE_ANONYMOUS: i32 = 0x22;

fn touch(touched: &mut usize, pages: usize) {
    unsafe {
        let fresh = mmap(std::ptr::null_mut(), pages * 4096, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) as *mut u8;
        for i in 0..pages {
            fresh.add(i * 4096).write_volatile(1);
        }
        munmap(fresh as *mut c_void, pages * 4096);
    }
    *touched += pages;
}

// black_box prevents a tail call, which would remove the function from the stack.
#[inline(never)]
fn heavy(touched: &mut [usize; 3]) { touch(&mut touched[0], 600); std::hint::black_box(touched); }
#[inline(never)]
fn light(touched: &mut [usize; 3]) { touch(&mut touched[1], 300); std::hint::black_box(touched); }
#[inline(never)]
fn rest(touched: &mut [usize; 3]) { touch(&mut touched[2], 100); std::hint::black_box(touched); }
#[inline(never)]
fn work(touched: &mut [usize; 3]) { heavy(touched); light(touched); rest(touched); std::hint::black_box(touched); }

fn main() {
    let mut touched = [0; 3];
    for _ in 0..std::env::args().nth(1).unwrap().parse().unwrap() {
        work(&mut touched);
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
    println!("{} {} {}", touched[0], touched[1], touched[2]);
}

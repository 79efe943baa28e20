use pinfold::*;
use std::sync::Arc;
use std::time::Instant;
fn main() {
    let cache = Cache::new(Options::new(64 << 20)).unwrap();
    std::fs::write("/dev/shm/pf4k", vec![7u8; 4096]).unwrap();
    let f = cache.open("/dev/shm/pf4k").unwrap();
    let mut buf = [0u8; 64];
    assert_eq!(f.read_at(&mut buf, 0).unwrap(), 64);
    assert_eq!(buf, [7; 64]);
    for n in [64usize, 4096] {
        let mut buf = vec![0u8; n];
        let t = Instant::now();
        let iters = 50_000_000 / (1 + n / 256);
        for _ in 0..iters {
            std::hint::black_box(f.read_at(std::hint::black_box(&mut buf), 0).unwrap());
        }
        println!("{n}: {:.2} ns", t.elapsed().as_nanos() as f64 / iters as f64);
        let src = vec![1u8; n];
        let t = Instant::now();
        for _ in 0..iters {
            std::hint::black_box(&mut buf).copy_from_slice(std::hint::black_box(&src));
        }
        println!("   memcpy: {:.2} ns", t.elapsed().as_nanos() as f64 / iters as f64);
    }
    let f = cache.open(std::env::args().nth(1).unwrap()).unwrap();
    let t = Instant::now();
    let mut big = vec![0u8; 1 << 20];
    let mut off = 0;
    loop { let n = f.read_at(&mut big, off).unwrap(); if n == 0 { break } off += n as u64; }
    println!("scan {} MiB: {:.0} MiB/s", off >> 20, off as f64 / 1048576. / t.elapsed().as_secs_f64());
    let mut x = 1u64; let t = Instant::now(); let mut n = 0;
    while t.elapsed().as_secs_f64() < 2.0 { x = x.wrapping_mul(6364136223846793005).wrapping_add(1); f.read_at(&mut buf, (x >> 20) % (off / 4096) * 4096).unwrap(); n += 1; }
    println!("random {:.0}/s", n as f64 / 2.0);
    println!("{:#?}", cache.stats());
    let _ = Arc::new(0);
}

//! A server that answers ranges of a file over TCP without copying them: pages go from the cache to
//! the socket as [`Bytes`], and each is held until the system has taken it.
//!
//! ```sh
//! cargo run --release -p pinfold --example range_server [REQUESTS]
//! ```
//!
//! makes a file of 128 MiB, serves it under a budget of 16 MiB from two threads, and is its own
//! client: it sends 10,000 requests at once over 100 connections, and checks every byte.
//!
//! A request is three numbers of 8 bytes, little-endian: its own number, the offset and the length
//! of the range. The answer is the request's number and the length of what follows, in pieces; a
//! piece of length 0 is the last.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use pinfold::{Cache, File, Hint, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 128 << 20;
const BUDGET: u64 = FILE_BYTES / 8;
const CONNECTIONS: u64 = 100;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A part of an answer. It keeps its page in the cache until it is dropped.
struct Piece {
    request: u64,
    bytes: Bytes,
}

/// Sends the range, page by page. While it waits for a page it holds none: a server whose tasks
/// wait for memory while they hold some may wait for ever.
async fn answer(
    file: Arc<File>,
    (request, offset, length): (u64, u64, u64),
    pieces: mpsc::Sender<Piece>,
) -> Result<(), Failure> {
    let end = (offset + length).min(file.len());
    let mut at = offset;
    while at < end {
        let page = file.get_async(at / PAGE).await?.into_owned();
        let from = (at % PAGE) as usize;
        let upto = page.len().min(from + (end - at) as usize);
        let bytes = Bytes::from_owner(page).slice(from..upto);
        at += bytes.len() as u64;
        pieces.send(Piece { request, bytes }).await?;
    }
    pieces.send(Piece { request, bytes: Bytes::new() }).await?;
    Ok(())
}

/// Serves one connection: a task for each request, and one that writes.
async fn serve(file: Arc<File>, stream: TcpStream) -> Result<(), Failure> {
    let (from, to) = stream.into_split();
    let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
    let (pieces, mut ready) = mpsc::channel::<Piece>(4);
    let writer = tokio::spawn(async move {
        while let Some(Piece { request, bytes }) = ready.recv().await {
            to.write_u64_le(request).await?;
            to.write_u64_le(bytes.len() as u64).await?;
            to.write_all(&bytes).await?;
            if ready.is_empty() {
                to.flush().await?;
            }
        }
        to.flush().await
    });
    while let Ok(request) = from.read_u64_le().await {
        let range = (request, from.read_u64_le().await?, from.read_u64_le().await?);
        let (file, pieces) = (file.clone(), pieces.clone());
        tokio::spawn(async move {
            if let Err(cause) = answer(file, range, pieces).await {
                eprintln!("request {request} failed: {cause}");
            }
        });
    }
    drop(pieces);
    Ok(writer.await??)
}

/// What the file has at `offset`.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Sends requests `numbers` over one connection, all at once, and checks the answers. Returns the
/// number of bytes.
async fn ask(address: std::net::SocketAddr, numbers: std::ops::Range<u64>) -> Result<u64, Failure> {
    let range = |number: u64| {
        let offset = number.wrapping_mul(0xD134_2543_DE82_EF95) % FILE_BYTES;
        (offset, (number % 7 * 3000 + 100).min(FILE_BYTES - offset))
    };
    let (from, mut to) = TcpStream::connect(address).await?.into_split();
    let mut from = BufReader::new(from);
    let mut missing = std::collections::HashMap::new();
    let mut requests = Vec::new();
    for number in numbers {
        let (offset, length) = range(number);
        missing.insert(number, (offset, length));
        for word in [number, offset, length] {
            requests.extend(word.to_le_bytes());
        }
    }
    let sender = tokio::spawn(async move { to.write_all(&requests).await.map(|()| to) });
    let (mut buf, mut total) = (Vec::new(), 0);
    while !missing.is_empty() {
        let number = from.read_u64_le().await?;
        buf.resize(from.read_u64_le().await? as usize, 0);
        from.read_exact(&mut buf).await?;
        let (offset, left): &mut (u64, u64) =
            missing.get_mut(&number).ok_or("an answer nobody asked for")?;
        if !(*offset..).zip(&buf).all(|(at, &byte)| byte == byte_at(at)) {
            return Err(format!("request {number}: wrong bytes at {offset}").into());
        }
        let got = buf.len() as u64;
        (*offset, *left) = (*offset + got, left.checked_sub(got).ok_or("more than was asked for")?);
        total += got;
        if got == 0 {
            let (_, (_, left)) = missing.remove_entry(&number).expect("it was there");
            if left > 0 {
                return Err(format!("request {number}: {left} bytes are missing").into());
            }
        }
    }
    drop(sender.await??);
    Ok(total)
}

fn main() -> Result<(), Failure> {
    let requests = std::env::args().nth(1).map_or(Ok(10_000), |number| number.parse::<u64>())?;
    run(std::path::Path::new("."), requests).map(drop)
}

/// Serves as many ranges of a file in `dir`. Returns the number of their bytes.
pub(crate) fn run(dir: &std::path::Path, requests: u64) -> Result<u64, Failure> {
    let mut on_disk = tempfile::NamedTempFile::new_in(dir)?;
    let block: Vec<u8> = (0..FILE_BYTES).map(byte_at).collect();
    on_disk.write_all(&block)?;
    drop(block);
    let cache = Cache::new(Options::new(BUDGET))?;
    let file = Arc::new(cache.open(on_disk.path())?);
    file.advise(0..FILE_BYTES, Hint::Random)?;

    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build()?;
    let (since, served) = (Instant::now(), file.clone());
    let bytes = runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(served.clone(), stream));
            }
        });
        let share = |n: u64| n * requests / CONNECTIONS;
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|n| tokio::spawn(ask(address, share(n)..share(n + 1)))).collect();
        let mut bytes = 0;
        for client in clients {
            bytes += client.await??;
        }
        Ok::<_, Failure>(bytes)
    })?;
    let stats = cache.stats();
    println!(
        "{requests} ranges, {:.1} MiB in {:.2} s, every byte right; {} misses, the budget \
         is {} MiB",
        bytes as f64 / 1_048_576.0,
        since.elapsed().as_secs_f64(),
        stats.misses,
        BUDGET >> 20,
    );
    Ok(bytes)
}

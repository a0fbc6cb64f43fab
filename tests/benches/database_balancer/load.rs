//! What clients do: connections one after the other, a transfer, transactions of pgbench, connections that are idle.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// So many connections of each of so many clients at once, each with one byte there and back and a clean end on both
/// sides.
pub(crate) fn connections(to: SocketAddr, clients: u32, count: u32) -> io::Result<()> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(move || client(to, count))).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| Err(io::Error::other("a client died"))))
    })
}

fn client(to: SocketAddr, count: u32) -> io::Result<()> {
    for _ in 0..count {
        let mut stream = connect(to)?;
        stream.write_all(b"e")?;
        let mut byte = [0; 1];
        stream.read_exact(&mut byte)?;
        stream.shutdown(Shutdown::Write)?;
        if stream.read(&mut byte)? != 0 {
            return Err(io::Error::other("a byte came that nobody sent"));
        }
    }
    Ok(())
}

/// Takes so many bytes.
pub(crate) fn bulk(to: SocketAddr, bytes: u64) -> io::Result<Duration> {
    let mut stream = connect(to)?;
    let began = Instant::now();
    stream.write_all(&[&b"b"[..], &bytes.to_le_bytes()].concat())?;
    let mut buffer = vec![0; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => left -= count as u64,
        }
    }
    Ok(began.elapsed())
}

/// Opens connections that say nothing; they are open once a byte went there and back on each.
pub(crate) fn idle(to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(to)?;
        stream.write_all(b"e")?;
        stream.read_exact(&mut [0])?;
        open.push(stream);
    }
    Ok(open)
}

/// Which node serves a new connection, if it says so within `wait`. While writes are refused, the balancer waits for a
/// whole beginning of PostgreSQL's protocol, which this is not.
pub(crate) fn who(to: SocketAddr, wait: Duration) -> io::Result<String> {
    let mut stream = connect(to)?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(b"w")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said.trim().to_owned())
}

/// The account and database that pgbench uses.
const DATABASE: [&str; 3] = ["--host=127.0.0.1", "--username=application", "shop"];

fn pgbench(program: &Path, port: u16, arguments: &[String]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.env("PGPASSWORD", super::servers::APPLICATION_PASSWORD).arg(format!("--port={port}"));
    let output = command.args(arguments).args(DATABASE).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Fills the database that the transactions read.
pub(crate) fn fill(program: &Path, port: u16) -> Result<(), String> {
    pgbench(program, port, &["--initialize".to_owned(), "--quiet".to_owned()]).map(drop)
}

/// Transactions that select one row by its key, prepared, over 16 clients; returns how many there were.
pub(crate) fn transactions(program: &Path, port: u16, span: Duration) -> Result<f64, String> {
    let words = ["--select-only", "--protocol=prepared", "--client=16", "--jobs=2", "--no-vacuum"];
    let mut arguments = words.map(str::to_owned).to_vec();
    arguments.push(format!("--time={}", span.as_secs()));
    let said = pgbench(program, port, &arguments)?;
    let line = said.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
    line.and_then(|count| count.trim().parse().ok()).ok_or_else(|| format!("pgbench told no count: {said}"))
}

//! A node of a database cluster for the bench: PostgreSQL's protocol, as much of it as a probe speaks, and for whoever
//! begins otherwise an application that echoes, sends many bytes or says which node it is.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// What the node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Says {
    pub(crate) id: String,
    pub(crate) epoch: u64,
    pub(crate) primary: bool,
    /// The ids of the nodes that stream from it.
    pub(crate) replicas: String,
    /// It takes connections and answers nothing.
    pub(crate) silent: bool,
}

/// A node; it lives as long as the bench.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) says: Arc<Mutex<Says>>,
    closed: Arc<AtomicBool>,
}

/// The probe that these nodes answer, for the configuration.
pub(crate) const CUSTOM: &str = "[custom]\nprotocol = \"postgres\"\nquery = \"SELECT who\"\nreplicas = \"replicas\"\n";

/// The stack of a connection's thread: its buffer is on the heap.
const STACK_BYTES: usize = 64 << 10;

impl Node {
    /// Starts a node on a free port.
    pub(crate) fn start(id: &str, primary: bool) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let says = Says { id: id.to_owned(), epoch: 1, primary, replicas: String::new(), silent: false };
        let node = Self { address, says: Arc::new(Mutex::new(says)), closed: Arc::default() };
        let (says, closed) = (Arc::clone(&node.says), Arc::clone(&node.closed));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                let says = Arc::clone(&says);
                // An error is the other side's end.
                let serve = move || drop(serve(&stream, &says));
                thread::Builder::new().stack_size(STACK_BYTES).spawn(serve).expect("a thread");
            }
        });
        Ok(node)
    }

    /// Stops listening; connections that are open, such as a probe's, stay.
    pub(crate) fn close_door(&self) {
        self.closed.store(true, Ordering::Relaxed);
        while TcpStream::connect(self.address).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock().expect("nobody panics with it"));
    }

    /// The line of `[nodes]`.
    pub(crate) fn line(&self) -> String {
        format!("{} = \"{}\"\n", self.says.lock().expect("nobody panics with it").id, self.address)
    }
}

fn serve(mut stream: &TcpStream, says: &Mutex<Says>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0; 1];
    stream.read_exact(&mut first)?;
    let now = || says.lock().expect("nobody panics with it").clone();
    while now().silent {
        thread::sleep(Duration::from_millis(5));
    }
    match first[0] {
        // The length of a startup message begins with zero.
        0 => probe(stream, says),
        b'b' => bulk(stream),
        b'w' => stream.write_all(format!("{}\n", now().id).as_bytes()),
        _ => echo(stream, first[0]),
    }
}

fn echo(mut stream: &TcpStream, first: u8) -> io::Result<()> {
    stream.write_all(&[first])?;
    let mut bytes = vec![0; 4 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => stream.write_all(&bytes[..count])?,
        }
    }
}

/// Sends as many bytes as it is told.
fn bulk(mut stream: &TcpStream) -> io::Result<()> {
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let mut left = u64::from_le_bytes(wanted);
    let bytes = vec![7; 256 << 10];
    while left > 0 {
        let count = left.min(bytes.len() as u64) as usize;
        stream.write_all(&bytes[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn probe(mut stream: &TcpStream, says: &Mutex<Says>) -> io::Result<()> {
    let mut rest = [0; 3];
    stream.read_exact(&mut rest)?;
    let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
    let mut startup = vec![0; length.saturating_sub(4)];
    stream.read_exact(&mut startup)?;
    stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")?;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4];
        stream.read_exact(&mut body)?;
        let says = || says.lock().expect("nobody panics with it").clone();
        while says().silent {
            thread::sleep(Duration::from_millis(5));
        }
        match head[0] {
            b'Q' => stream.write_all(&answer(&says()))?,
            b'X' => return Ok(()),
            _ => stream.write_all(b"Z\0\0\0\x05I")?,
        }
    }
}

/// One row: identity, epoch and role, then the words that end an answer.
fn answer(says: &Says) -> Vec<u8> {
    let epoch = says.epoch.to_string();
    let role = if says.primary { "PRIMARY" } else { "SECONDARY" };
    let row = [("identity", says.id.as_str()), ("epoch", &epoch), ("role", role), ("replicas", &says.replicas)];
    let mut names = (row.len() as u16).to_be_bytes().to_vec();
    let mut values = names.clone();
    for (name, value) in row {
        names.extend(name.as_bytes());
        // No table, no column, the type `text`, any length, no modifier, as text.
        names.extend(b"\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        values.extend((value.len() as u32).to_be_bytes());
        values.extend(value.as_bytes());
    }
    let mut bytes = Vec::new();
    for (kind, body) in [(b'T', names.as_slice()), (b'D', &values), (b'C', b"SELECT 1\0"), (b'Z', b"I")] {
        bytes.push(kind);
        bytes.extend((body.len() as u32 + 4).to_be_bytes());
        bytes.extend(body);
    }
    bytes
}

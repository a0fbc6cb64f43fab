//! A node of a database cluster that exists only in tests: MySQL's protocol, as much of it as a probe speaks, and behind
//! a PROXY header an application that says who its client is and then does what the client asks.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use postroad_cluster::balancer::proxy_header::{Header, Parser};

/// What the node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Says {
    pub(crate) id: String,
    pub(crate) epoch: u64,
    pub(crate) role: String,
    /// The ids of the nodes that stream from it.
    pub(crate) replicas: String,
    /// The version of MySQL as which it answers; none is the custom engine.
    pub(crate) mysql: Option<&'static str>,
}

/// A node; its listener ends with it.
pub(crate) struct MysqlNode {
    pub(crate) address: SocketAddr,
    pub(crate) says: Arc<Mutex<Says>>,
    ended: Arc<AtomicBool>,
}

/// Connections from here are probes, where a sender of text headers stands between.
pub(crate) const PROBES_FROM: &str = "127.0.0.9";

/// The probe that these nodes answer, for the configuration.
pub(crate) const CUSTOM: &str = "[custom]\n\
    query = \"SELECT @@cluster_node_id AS id, @@cluster_epoch AS term, @@cluster_role AS part\"\n\
    identity = \"id\"\nepoch = \"term\"\nrole = \"part\"\nreplicas = \"replicas\"\nposition = \"position\"\n";

impl MysqlNode {
    /// Starts a node on a free port.
    pub(crate) fn start(id: &str, role: &str, replicas: &str) -> Self {
        Self::start_as(None, id, role, replicas)
    }

    /// Starts one that answers what a MySQL of that version answers, and refuses what that does not know.
    pub(crate) fn start_as(mysql: Option<&'static str>, id: &str, role: &str, replicas: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let says = Says { id: id.to_owned(), epoch: 1, role: role.to_owned(), replicas: replicas.to_owned(), mysql };
        let node = Self { address, says: Arc::new(Mutex::new(says)), ended: Arc::default() };
        let (says, ended) = (Arc::clone(&node.says), Arc::clone(&node.ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (says, stream) = (Arc::clone(&says), stream.unwrap());
                // An error is the other side's end, which the test sees at its own.
                thread::spawn(move || serve(&stream, &says));
            }
        });
        node
    }

    /// The line of `[nodes]`.
    pub(crate) fn line(&self) -> String {
        format!("{} = \"{}\"\n", self.says.lock().unwrap().id, self.address)
    }

    /// Stops listening; connections that are open, such as a probe's, stay.
    pub(crate) fn close_door(&self) {
        self.ended.store(true, Ordering::Relaxed);
        // The listener looks at it when the next connection comes.
        let _ = TcpStream::connect(self.address);
        while TcpStream::connect(self.address).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for MysqlNode {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, says: &Mutex<Says>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match client(stream)? {
        None => probe(stream, says),
        Some(client) => application(stream, client, says),
    }
}

/// Who the client is, by a header of either version; nobody for a probe.
fn client(mut stream: &TcpStream) -> io::Result<Option<SocketAddr>> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut first = [0; 1];
    stream.read_exact(&mut first)?;
    if first[0] == b'P' {
        return text_header(stream).map(|from| Some(from).filter(|from| from.ip() != probes_from()));
    }
    let mut parser = Parser::default();
    let mut taken = parser.take(&first).map_err(|refused| bad(refused.to_string()))?;
    while taken.is_none() {
        let mut bytes = vec![0; parser.wanted()];
        stream.read_exact(&mut bytes)?;
        taken = parser.take(&bytes).map_err(|refused| bad(refused.to_string()))?;
    }
    Ok(match taken {
        Some(Header::Proxied { source, .. }) => Some(source),
        _ => None,
    })
}

fn probes_from() -> IpAddr {
    PROBES_FROM.parse().unwrap()
}

/// `PROXY TCP4 SOURCE DESTINATION SOURCE_PORT DESTINATION_PORT`, its first letter read.
fn text_header(mut stream: &TcpStream) -> io::Result<SocketAddr> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    Ok(SocketAddr::new(words[2].parse().unwrap(), words[4].parse().unwrap()))
}

/// Says `ID CLIENT`, and then by the client's first byte: `e` sends everything back, `q` ends.
fn application(mut stream: &TcpStream, client: SocketAddr, says: &Mutex<Says>) -> io::Result<()> {
    let id = says.lock().unwrap().id.clone();
    stream.write_all(format!("{id} {client}\n").as_bytes())?;
    let mut bytes = vec![0; 64 << 10];
    let count = stream.read(&mut bytes)?;
    if bytes[..count].first() != Some(&b'e') {
        return Ok(());
    }
    let mut rest = &bytes[1..count];
    stream.write_all(rest)?;
    let mut bytes = vec![0; 256 << 10];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return stream.shutdown(std::net::Shutdown::Write);
        }
        rest = &bytes[..count];
        stream.write_all(rest)?;
    }
}

/// What the client may do: long passwords, transactions, protocol 4.1, secure connections, plugins of authentication.
const CAPABILITIES: u32 = 0x0008_a209;

fn probe(stream: &TcpStream, says: &Mutex<Says>) -> io::Result<()> {
    let mut greeting = b"\x0a8.0.0-test\0\x01\0\0\0abcdefgh\0".to_vec();
    greeting.extend(&CAPABILITIES.to_le_bytes()[..2]);
    greeting.extend([45, 2, 0]);
    greeting.extend(&CAPABILITIES.to_le_bytes()[2..]);
    greeting.push(21);
    greeting.extend([0; 10]);
    greeting.extend(b"ijklmnopqrst\0mysql_native_password\0");
    write_packet(stream, 0, &greeting)?;
    let (number, _) = read_packet(stream)?;
    write_packet(stream, number.wrapping_add(1), OK)?;
    loop {
        let (_, command) = read_packet(stream)?;
        let query = String::from_utf8_lossy(command.get(1..).unwrap_or_default()).into_owned();
        match command.first() {
            None | Some(1) => return Ok(()),
            Some(3) if query.contains("@@cluster_node_id") => {
                let says = says.lock().unwrap().clone();
                answer(stream, &says)?;
            }
            Some(3) if query.starts_with("SHOW ") || query.contains("@@global.server_id") => {
                let says = says.lock().unwrap().clone();
                match mysql_rows(&says, &query) {
                    Some(rows) => write_rows(stream, &rows)?,
                    None => write_packet(stream, 1, SYNTAX)?,
                }
            }
            Some(_) => write_packet(stream, 1, OK)?,
        }
    }
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";
const EOF: &[u8] = b"\xfe\0\0\x02\0";

/// An error of a statement that the server does not know, as MySQL says it.
const SYNTAX: &[u8] = b"\xff\x28\x04#42000You have an error in your SQL syntax";

/// One row: columns with their values.
type Row = Vec<(&'static str, String)>;

fn answer(stream: &TcpStream, says: &Says) -> io::Result<()> {
    let row = vec![
        ("id", says.id.clone()),
        ("term", says.epoch.to_string()),
        ("part", says.role.clone()),
        ("replicas", says.replicas.clone()),
        ("position", "4711".to_owned()),
    ];
    write_rows(stream, &[row])
}

/// What a MySQL of that version answers; none where it does not know the statement.
fn mysql_rows(says: &Says, query: &str) -> Option<Vec<Row>> {
    const SET: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23";
    let version = says.mysql?;
    let new_log = version >= "8.2";
    let new_list = version >= "8.0.22";
    let replicas = says.replicas.split(',').filter(|id| !id.is_empty());
    match query {
        "SHOW MASTER STATUS" if version < "8.4" => {}
        "SHOW BINARY LOG STATUS" if new_log => {}
        "SHOW SLAVE HOSTS" if version < "8.4" => {
            return Some(replicas.map(|id| vec![("Server_id", id.to_owned())]).collect());
        }
        "SHOW REPLICAS" if new_list => return Some(replicas.map(|id| vec![("Server_Id", id.to_owned())]).collect()),
        query if query.contains("@@global.server_id") => {
            let read_only = if says.role == "PRIMARY" { "0" } else { "1" };
            let row = [
                ("identity", says.id.as_str()),
                ("read_only", read_only),
                ("followed", "1"),
                ("connections_max", "151"),
                ("version", version),
                ("active", "0"),
                ("written", SET),
                ("replayed", SET),
                ("counts", "ON"),
                ("connections", "3"),
            ];
            return Some(vec![row.map(|(column, value)| (column, value.to_owned())).to_vec()]);
        }
        _ => return None,
    }
    let row = [("File", "binlog.000012"), ("Position", "157"), ("Executed_Gtid_Set", SET)];
    Some(vec![row.map(|(column, value)| (column, value.to_owned())).to_vec()])
}

fn write_rows(stream: &TcpStream, rows: &[Row]) -> io::Result<()> {
    let Some(first) = rows.first() else {
        // MySQL tells the columns of an empty answer too.
        return write_rows_of(stream, &["Server_Id"], rows);
    };
    let columns: Vec<&str> = first.iter().map(|(column, _)| *column).collect();
    write_rows_of(stream, &columns, rows)
}

fn write_rows_of(stream: &TcpStream, columns: &[&str], rows: &[Row]) -> io::Result<()> {
    write_packet(stream, 1, &[columns.len() as u8])?;
    let mut number = 2;
    for column in columns {
        let mut packet = Vec::new();
        for part in ["def", "", "", "", column, ""] {
            text(&mut packet, part);
        }
        packet.extend([0x0c, 45, 0, 0, 1, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
        write_packet(stream, number, &packet)?;
        number += 1;
    }
    write_packet(stream, number, EOF)?;
    for row in rows {
        let mut packet = Vec::new();
        for (_, value) in row {
            text(&mut packet, value);
        }
        number += 1;
        write_packet(stream, number, &packet)?;
    }
    write_packet(stream, number + 1, EOF)
}

fn text(packet: &mut Vec<u8>, value: &str) {
    assert!(value.len() < 251, "longer texts have another length");
    packet.push(value.len() as u8);
    packet.extend(value.as_bytes());
}

fn write_packet(mut stream: &TcpStream, number: u8, packet: &[u8]) -> io::Result<()> {
    let mut bytes = (packet.len() as u32).to_le_bytes().to_vec();
    bytes[3] = number;
    bytes.extend(packet);
    stream.write_all(&bytes)
}

fn read_packet(mut stream: &TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let mut packet = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut packet)?;
    Ok((head[3], packet))
}

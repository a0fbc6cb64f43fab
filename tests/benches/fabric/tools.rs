//! What carries the connections: Postroad, the tools that it is compared with, and nothing at all.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use postroad::{
    cli::output::Style,
    demo::{
        fleet::{Fleet, Planned, Role},
        member::Member,
        observe::Seen,
        setup::{self, CONSUMER, TARGET},
        story::Story,
    },
    errors::Failure,
};

use crate::support::process::{Process, ports, program};

/// HAProxy's name in the tables.
pub(crate) const HAPROXY: &str = "haproxy TCP";

/// That of a pair of stunnels.
pub(crate) const STUNNEL: &str = "stunnel pair";

const RATHOLE: &str = "rathole TLS";
const SSH: &str = "ssh -L";
const IROH: &str = "iroh (dumbpipe)";

/// Tools that encrypt from node to node, as Postroad does, and that it is to be ahead of.
pub(crate) const TO_BE_AHEAD_OF: [&str; 3] = [RATHOLE, SSH, IROH];

/// How long a tool may take until it carries connections.
const START_WITHIN: Duration = Duration::from_secs(10);

/// How long iroh may take to find that its relays are out of reach, at each end.
const IROH_WITHIN: Duration = Duration::from_secs(30);

/// Something that carries connections to the target.
pub(crate) struct Tool {
    /// Its name.
    pub(crate) name: &'static str,
    /// What its ends check of each other, since that costs too.
    pub(crate) verifies: &'static str,
    /// Where the consumer's applications connect.
    pub(crate) address: SocketAddr,
    /// Its processes by their part in it.
    pub(crate) parts: Vec<(&'static str, Vec<u32>)>,
    processes: Vec<Process>,
    fleet: Option<Fleet>,
}

/// How a tool is started: in a directory for its files, towards the target; nothing if it is not installed.
pub(crate) type Starter = fn(&Path, SocketAddr) -> Result<Option<Tool>, String>;

impl Tool {
    /// The fleet behind it, if it has one.
    pub(crate) const fn fleet(&mut self) -> Option<&mut Fleet> {
        self.fleet.as_mut()
    }

    /// Stops it.
    pub(crate) async fn stop(mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.stop().await;
        }
        self.processes.clear();
    }
}

pub(crate) fn said(failure: &Failure) -> String {
    format!("{} {}", failure.message, failure.hint.as_deref().unwrap_or_default())
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Nothing between the applications.
pub(crate) fn raw(target: SocketAddr) -> Tool {
    let (name, verifies) = ("raw loopback", "nothing");
    Tool { name, verifies, address: target, parts: Vec::new(), processes: Vec::new(), fleet: None }
}

/// The nodes of the bench. The first control node has a relay too, so that there are three.
const NODES: [Planned; 5] = [
    (setup::FIRST, Role::Control, "1"),
    ("fra", Role::Relay, "fra"),
    ("ams", Role::Relay, "ams"),
    (CONSUMER, Role::Node, ""),
    (TARGET, Role::Node, ""),
];

/// Postroad with packets as they go through every network: 1,452 bytes with our header.
pub(crate) const SMALL: (&str, u64) = ("postroad", 1_436);

/// Postroad with packets for frames of 9,000 bytes, which loopback carries.
pub(crate) const LARGE: (&str, u64) = ("postroad jumbo", 8_936);

/// How long until large packets are proven and a circuit has them.
const LARGE_WITHIN: Duration = Duration::from_secs(40);

/// A Postroad cluster with a link to the target, and packets of up to so many bytes of QUIC.
pub(crate) async fn postroad((name, packet_bytes): (&'static str, u64), target: SocketAddr) -> Result<Tool, String> {
    let failed = |error: Failure| said(&error);
    let mut fleet = Fleet::of(PathBuf::from(env!("CARGO_BIN_EXE_postroad")), &NODES, false).map_err(failed)?;
    fleet.append(&format!("[fabric]\npacket_bytes_max = {packet_bytes}\n")).map_err(failed)?;
    let story = Story::new(Style { colour: false }, true);
    setup::set_up(&mut fleet, &story, target.port()).await.map_err(failed)?;
    let sized = |seen: &Seen| seen.packet_bytes() == packet_bytes;
    for end in [CONSUMER, TARGET] {
        fleet.until(end, "a circuit has packets of this size", LARGE_WITHIN, sized).await.map_err(failed)?;
    }
    let pids = |is_of: &dyn Fn(&str) -> bool| {
        let members = fleet.members().iter().filter(|member| is_of(member.name));
        members.filter_map(Member::pid).collect::<Vec<u32>>()
    };
    // Flows go over several relays, so all of them count as one, what they do beside it too.
    let ends = [CONSUMER, TARGET];
    let parts = vec![
        ("consumer", pids(&|name| name == CONSUMER)),
        ("relay", pids(&|name| !ends.contains(&name))),
        ("target", pids(&|name| name == TARGET)),
    ];
    let verifies = "both nodes' certificates, the grant of each connection";
    let address = loopback(fleet.link_port);
    Ok(Tool { name, verifies, address, parts, processes: Vec::new(), fleet: Some(fleet) })
}

/// A tool of other processes, all of which `start` returns with their parts.
fn started(
    name: &'static str,
    verifies: &'static str,
    address: SocketAddr,
    processes: Vec<(&'static str, Process)>,
) -> Tool {
    let parts = processes.iter().map(|(part, process)| (*part, vec![process.pid()])).collect();
    let processes = processes.into_iter().map(|(_, process)| process).collect();
    Tool { name, verifies, address, parts, processes, fleet: None }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// HAProxy as a TCP proxy: one process, nothing encrypted.
pub(crate) fn haproxy(directory: &Path, target: SocketAddr) -> Result<Option<Tool>, String> {
    let Some(program) = program("haproxy")? else { return Ok(None) };
    let address = loopback(ports(1)?[0]);
    let config = directory.join("haproxy.cfg");
    let text = format!(
        "global\n  maxconn 8000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         listen relay\n  bind {address}\n  server target {target}\n"
    );
    write(&config, &text)?;
    let mut process = Process::start(
        "haproxy",
        Command::new(program).arg("-db").arg("-f").arg(&config),
        &directory.join("haproxy.log"),
    )?;
    process.listens(address, START_WITHIN)?;
    Ok(Some(started(HAPROXY, "nothing", address, vec![("proxy", process)])))
}

/// Two stunnels: TLS 1.3 from one to the other, with a shared key.
pub(crate) fn stunnel(directory: &Path, target: SocketAddr) -> Result<Option<Tool>, String> {
    let Some(program) = program("stunnel")? else { return Ok(None) };
    let found = ports(2)?;
    let (near, far) = (loopback(found[0]), loopback(found[1]));
    let secrets = directory.join("stunnel.psk");
    write(&secrets, "bench:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n")?;
    let side = |name: &'static str, client: &str, accept: SocketAddr, connect: SocketAddr| {
        let config = directory.join(format!("stunnel-{name}.conf"));
        let text = format!(
            "foreground = yes\npid =\nsyslog = no\ndebug = 3\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n\
             [{name}]\nclient = {client}\naccept = {accept}\nconnect = {connect}\nsslVersion = TLSv1.3\n\
             ciphersuites = TLS_AES_128_GCM_SHA256\nPSKsecrets = {}\n{}",
            secrets.display(),
            if client == "yes" { "PSKidentity = bench\n" } else { "ciphers = PSK\n" },
        );
        write(&config, &text)?;
        let mut process = Process::start(
            &format!("stunnel ({name})"),
            Command::new(&program).arg(&config),
            &directory.join(format!("stunnel-{name}.log")),
        )?;
        process.listens(accept, START_WITHIN)?;
        Ok::<_, String>(process)
    };
    let server = side("target", "no", far, target)?;
    let client = side("consumer", "yes", near, far)?;
    Ok(Some(started(STUNNEL, "a shared key, both ways", near, vec![("consumer", client), ("target", server)])))
}

/// rathole over TLS, whose certificate is made by openssl, or over noise where there is none.
pub(crate) fn rathole(directory: &Path, target: SocketAddr) -> Result<Option<Tool>, String> {
    let Some(program) = program("rathole")? else { return Ok(None) };
    let found = ports(2)?;
    let (control, near) = (loopback(found[0]), loopback(found[1]));
    let (name, verifies, server, client) = if let Some((pfx, root)) = identity(directory) {
        (
            RATHOLE,
            "the server's certificate, a token once",
            format!(
                "type = \"tls\"\n[server.transport.tls]\npkcs12 = \"{}\"\npkcs12_password = \"bench\"\n",
                pfx.display()
            ),
            format!(
                "type = \"tls\"\n[client.transport.tls]\ntrusted_root = \"{}\"\nhostname = \"localhost\"\n",
                root.display()
            ),
        )
    } else {
        let (private, public) = keys(&program)?;
        (
            "rathole noise",
            "the server's key, a token once",
            format!("type = \"noise\"\n[server.transport.noise]\nlocal_private_key = \"{private}\"\n"),
            format!("type = \"noise\"\n[client.transport.noise]\nremote_public_key = \"{public}\"\n"),
        )
    };
    let server = format!(
        "[server]\nbind_addr = \"{control}\"\ndefault_token = \"bench\"\n[server.transport]\n{server}\
         [server.services.bench]\nbind_addr = \"{near}\"\nnodelay = true\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"{control}\"\ndefault_token = \"bench\"\n[client.transport]\n{client}\
         [client.services.bench]\nlocal_addr = \"{target}\"\nnodelay = true\n"
    );
    let (near_file, far_file) = (directory.join("rathole-server.toml"), directory.join("rathole-client.toml"));
    write(&near_file, &server)?;
    write(&far_file, &client)?;
    let start = |file: &Path, flag: &str, log: &str| {
        Process::start("rathole", Command::new(&program).arg(flag).arg(file), &directory.join(log))
    };
    let mut near_end = start(&near_file, "--server", "rathole-server.log")?;
    near_end.listens(control, START_WITHIN)?;
    let far_end = start(&far_file, "--client", "rathole-client.log")?;
    near_end.listens(near, START_WITHIN)?;
    Ok(Some(started(name, verifies, near, vec![("consumer", near_end), ("target", far_end)])))
}

/// OpenSSH: a server of our own with keys of its own, and a client that forwards a port.
pub(crate) fn ssh(directory: &Path, target: SocketAddr) -> Result<Option<Tool>, String> {
    let (Some(server), Some(client), Some(keygen)) = (program("sshd")?, program("ssh")?, program("ssh-keygen")?) else {
        return Ok(None);
    };
    let found = ports(2)?;
    let (door, near) = (loopback(found[0]), loopback(found[1]));
    let file = |name: &str| directory.join(format!("ssh-{name}"));
    for key in ["host", "user"] {
        let made = Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file(key)).status();
        if !made.is_ok_and(|status| status.success()) {
            return Err("ssh-keygen made no key".to_owned());
        }
    }
    let read = |name: &str| fs::read_to_string(file(name)).map_err(|error| format!("no key: {error}"));
    write(&file("known"), &format!("[127.0.0.1]:{} {}", door.port(), read("host.pub")?))?;
    let config = format!(
        "ListenAddress {door}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
         PasswordAuthentication no\nPermitRootLogin prohibit-password\n",
        file("host").display(),
        file("user.pub").display(),
    );
    write(&file("config"), &config)?;
    // As root, sshd insists on the empty directory that its service makes at each start.
    let _ = fs::create_dir_all("/run/sshd");
    let mut far_end =
        Process::start("sshd", Command::new(server).args(["-D", "-e", "-f"]).arg(file("config")), &file("server.log"))?;
    far_end.listens(door, START_WITHIN)?;
    let mut command = Command::new(client);
    command.args(["-N", "-F", "none", "-c", "aes128-gcm@openssh.com", "-o", "ExitOnForwardFailure=yes", "-i"]);
    command.arg(file("user")).args(["-o", &format!("UserKnownHostsFile={}", file("known").display())]);
    command.args(["-L", &format!("{near}:{target}"), "-p", &door.port().to_string(), "127.0.0.1"]);
    let mut near_end = Process::start("ssh", &mut command, &file("client.log"))?;
    near_end.listens(near, START_WITHIN)?;
    let verifies = "the host's key and the user's, once";
    Ok(Some(started(SSH, verifies, near, vec![("consumer", near_end), ("target", far_end)])))
}

/// iroh's pipe for TCP: it asks for iroh's own relays first, and goes on without them.
pub(crate) fn iroh(directory: &Path, target: SocketAddr) -> Result<Option<Tool>, String> {
    let Some(program) = program("dumbpipe")? else { return Ok(None) };
    let near = loopback(ports(1)?[0]);
    let start = |mode: &str, flag: &str, address: SocketAddr, more: &[&str]| {
        let mut command = Command::new(&program);
        command.args([mode, flag, &address.to_string(), "--ipv4-addr", "127.0.0.1:0"]).args(more);
        Process::start(&format!("dumbpipe {mode}"), &mut command, &directory.join(format!("dumbpipe-{mode}.log")))
    };
    let mut far_end = start("listen-tcp", "--host", target, &[])?;
    let ticket = far_end.says(IROH_WITHIN, |said| {
        let mut words = said.split_whitespace();
        words.find(|word| word.starts_with("endpoint") && word.len() > 40).map(str::to_owned)
    })?;
    let mut near_end = start("connect-tcp", "--addr", near, &[&ticket])?;
    near_end.listens(near, IROH_WITHIN)?;
    Ok(Some(started(IROH, "both ends' keys", near, vec![("consumer", near_end), ("target", far_end)])))
}

/// A certificate for localhost as rathole wants it; none without openssl.
fn identity(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let file = |name: &str| directory.join(name);
    let (key, certificate, pfx) = (file("bench.key"), file("bench.crt"), file("bench.pfx"));
    let openssl = |arguments: &[&str], files: &[(&str, &Path)]| {
        let mut command = Command::new("openssl");
        command.args(arguments);
        for (flag, path) in files {
            command.arg(flag).arg(path);
        }
        command.output().is_ok_and(|output| output.status.success())
    };
    let made = openssl(
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
        &[("-keyout", &key), ("-out", &certificate)],
    ) && openssl(
        &["pkcs12", "-export", "-passout", "pass:bench"],
        &[("-inkey", &key), ("-in", &certificate), ("-out", &pfx)],
    );
    made.then_some((pfx, certificate))
}

/// A key pair of rathole's own making.
fn keys(program: &Path) -> Result<(String, String), String> {
    let output = Command::new(program).arg("--genkey").output();
    let output = output.map_err(|error| format!("rathole --genkey: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines[..] {
        [_, private, _, public, ..] => Ok((private.trim().to_owned(), public.trim().to_owned())),
        _ => Err(format!("rathole --genkey has said something else than two keys: {text}")),
    }
}

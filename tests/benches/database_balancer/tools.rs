//! What carries the connections: HAProxy, nginx and the balancer, each with a port to the bench's node and one to a real
//! PostgreSQL, and as many threads.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use crate::{
    balancer::Balancer,
    node::{self, Node},
    servers::MONITOR_PASSWORD,
    support::process::{Process, ports, program},
};

/// Threads of each tool: the balancer has one a core, and two at least.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// One tool.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// To the bench's node.
    pub(crate) plain: SocketAddr,
    /// To PostgreSQL.
    pub(crate) postgres: Option<SocketAddr>,
    /// The processes that carry the plain connections, and those of PostgreSQL.
    pub(crate) pids: [u32; 2],
    _lives: Lives,
}

enum Lives {
    Process { _process: Process },
    Balancers { _balancers: Vec<Balancer> },
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// HAProxy in TCP mode; nothing if it is not installed.
pub(crate) fn haproxy(
    directory: &Path,
    node: SocketAddr,
    postgres: Option<SocketAddr>,
    connections: usize,
) -> Result<Option<Tool>, String> {
    let Some(found) = program("haproxy")? else { return Ok(None) };
    let ports = ports(2)?;
    let mut text = format!(
        "global\n  nbthread {}\n  maxconn {}\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  \
         timeout server 1h\n",
        threads(),
        connections + 100
    );
    for (port, to) in ports.iter().zip([Some(node), postgres]) {
        if let Some(to) = to {
            text.extend(["listen p", &port.to_string(), "\n  bind 127.0.0.1:", &port.to_string()]);
            text.extend(["\n  server node ", &to.to_string(), "\n"]);
        }
    }
    let file = directory.join("haproxy.cfg");
    write(&file, &text)?;
    let mut command = Command::new(found);
    started("haproxy", command.arg("-f").arg(file), directory, &ports, postgres).map(Some)
}

/// Where Debian and others keep nginx's module for streams.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// nginx with its stream module; nothing if it is not installed.
pub(crate) fn nginx(
    directory: &Path,
    node: SocketAddr,
    postgres: Option<SocketAddr>,
    connections: usize,
) -> Result<Option<Tool>, String> {
    let Some(found) = program("nginx")? else { return Ok(None) };
    let ports = ports(2)?;
    let place = directory.display();
    let module =
        if Path::new(STREAM_MODULE).exists() { format!("load_module {STREAM_MODULE};\n") } else { String::new() };
    let mut text = format!(
        "{module}worker_processes {};\ndaemon off;\npid {place}/nginx.pid;\nerror_log {place}/nginx.error;\n\
         events {{ worker_connections {}; }}\nstream {{\n",
        threads(),
        2 * connections + 100
    );
    for (port, to) in ports.iter().zip([Some(node), postgres]) {
        if let Some(to) = to {
            text.extend(["server { listen 127.0.0.1:", &port.to_string(), "; proxy_pass ", &to.to_string()]);
            // Else it would end both sides at the first end of file, which is less work than the others' and ours.
            text.push_str("; proxy_timeout 1h; proxy_half_close on; }\n");
        }
    }
    let file = directory.join("nginx.conf");
    write(&file, &(text + "}\n"))?;
    let mut command = Command::new(found);
    started("nginx", command.arg("-c").arg(file), directory, &ports, postgres).map(Some)
}

fn started(
    name: &'static str,
    command: &mut Command,
    directory: &Path,
    ports: &[u16],
    postgres: Option<SocketAddr>,
) -> Result<Tool, String> {
    let mut process = Process::start(name, command, &directory.join(format!("{name}.log")))?;
    process.listens(loopback(ports[0]), Duration::from_secs(10))?;
    let postgres = postgres.map(|_| loopback(ports[1]));
    let pids = [process.pid(); 2];
    Ok(Tool { name, plain: loopback(ports[0]), postgres, pids, _lives: Lives::Process { _process: process } })
}

/// How the bench's nodes are probed.
pub(crate) fn monitor(period_ms: u64) -> String {
    format!("user = \"monitor\"\ntls = \"disabled\"\nperiod_ms = {period_ms}\ntimeout_ms = 500\nunhealthy_after = 3")
}

/// A balancer before nodes of the bench.
pub(crate) fn balance(nodes: &[&Node], period_ms: u64) -> Balancer {
    let lines: String = nodes.iter().map(|node| node.line()).collect();
    let routing = format!("max_lag_bytes = 0\nmax_lag_seconds = 0\n{}", node::CUSTOM);
    Balancer::start("engine = \"custom\"", &lines, &monitor(period_ms), &routing)
}

/// The balancer, as its operator runs it: one before the bench's node, one before PostgreSQL.
pub(crate) fn postroad(node: &Node, postgres: Option<SocketAddr>) -> Tool {
    let plain = balance(&[node], 1_000);
    let mut pids = [plain.pid(); 2];
    let address = loopback(plain.rw);
    let mut balancers = vec![plain];
    let postgres = postgres.map(|postgres| {
        let monitor = format!("user = \"monitor\"\npassword = \"{MONITOR_PASSWORD}\"");
        let balancer = Balancer::start("engine = \"postgres\"", &format!("db-1 = \"{postgres}\"\n"), &monitor, "");
        pids[1] = balancer.pid();
        let address = loopback(balancer.rw);
        balancers.push(balancer);
        address
    });
    Tool { name: "postroad", plain: address, postgres, pids, _lives: Lives::Balancers { _balancers: balancers } }
}

//! A database balancer as a role of a node: real processes, whose list of database nodes is the cluster's (DB-43).

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/mysql_node.rs"]
mod mysql_node;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Instant,
};

use hosts::{Hosts, PATIENCE};
use mysql_node::{CUSTOM, MysqlNode};
use rustix::process::Signal;
use serde_json::{Value, json};

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The ports of the balancer on its host.
struct Ports {
    rw: SocketAddr,
    ro: SocketAddr,
    admin: SocketAddr,
}

impl Ports {
    fn new() -> Self {
        Self { rw: free_address(), ro: free_address(), admin: free_address() }
    }

    /// The file of the balancer; `more` are lines before its sections.
    fn file(&self, more: &str) -> String {
        let Self { rw, ro, admin } = self;
        format!(
            "{more}\n[proxy]\nrw = \"{rw}\"\nro = \"{ro}\"\nadmin = \"{admin}\"\nengine = \"custom\"\n\
             [monitor]\nuser = \"monitor\"\npassword = \"watching\"\ntls = \"disabled\"\nperiod_ms = 300\n\
             [routing]\nproxy_protocol = true\nmax_lag_seconds = 0\n{CUSTOM}"
        )
    }
}

/// A client that says `hello` through the balancer whenever it is asked to.
struct Client(TcpStream);

impl Client {
    /// Connects, and says whom it reached; nothing while nobody leads anywhere.
    fn reach(address: SocketAddr) -> Option<(Self, String)> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"e").ok()?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0; 1];
            stream.read_exact(&mut byte).ok()?;
            // A refusal is an error packet of MySQL's protocol, whose fifth byte is 255.
            if byte[0] == 0xff {
                return None;
            }
            line.push(byte[0]);
        }
        let line = String::from_utf8(line).ok()?;
        Some((Self(stream), line.split(' ').next()?.to_owned()))
    }

    #[track_caller]
    fn until(address: SocketAddr, node: &str) -> Self {
        let began = Instant::now();
        loop {
            if let Some((client, reached)) = Self::reach(address)
                && reached == node
            {
                return client;
            }
            assert!(began.elapsed() < PATIENCE, "{address} does not lead to {node}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn is_open(&mut self) -> bool {
        let mut back = [0; 5];
        self.0.write_all(b"hello").is_ok() && self.0.read_exact(&mut back).is_ok() && back == *b"hello"
    }
}

fn ids(nodes: &Value, key: &str) -> Vec<String> {
    let of = |node: &&Value| key.is_empty() || node[key] == true;
    let nodes = nodes["nodes"].as_array().into_iter().flatten().filter(of);
    nodes.map(|node| node["node"].as_str().unwrap_or_default().to_owned()).collect()
}

// DB-43, DB-44
#[test]
fn a_node_runs_a_balancer_by_the_list_that_the_cluster_agrees_on() {
    let mut hosts = Hosts::new(2);
    let ports = Ports::new();
    fs::write(hosts.path("orders.toml"), ports.file("")).unwrap();
    hosts.configure(1, "[balancers]\norders = \"orders.toml\"\n");
    let (first, second) = (MysqlNode::start("n1", "PRIMARY", "n2"), MysqlNode::start("n2", "SECONDARY", ""));
    let (one, two) = (first.address, second.address);
    hosts.found();
    hosts.say(1, &Hosts::join(&hosts.token("node"), "web-1")).done();
    hosts.start(1);
    let status = format!("balance status --admin {}", ports.admin);
    let waits = hosts.say(1, &status).failed(3, "BALANCER_NOT_LISTED");
    assert!(waits.contains("postroad balance set orders --on web-1"), "{waits}");
    assert!(TcpStream::connect(ports.rw).is_err(), "nobody has it run yet");

    // What is wrong is refused by the cluster, with the way out.
    hosts.say(0, "balance add orders --to n1=127.0.0.1 --on web-1").failed(2, "WRONG_USE");
    let near = hosts.say(0, &format!("balance add orders --to n1={one} --on web-2")).failed(3, "NODE_UNKNOWN");
    assert!(near.contains("did you mean web-1"), "{near}");
    hosts.say(0, &format!("balance add orders --to n1={one} --to n2={one} --on web-1")).failed(3, "BALANCER_INVALID");
    hosts.say(1, &format!("balance add orders --to n1={one} --on web-1")).failed(3, "NOT_CONTROL");
    let made = hosts.say(0, &format!("balance add orders --to n1={one} --on web-1")).done();
    assert_eq!(made["databases"], json!({ "n1": one.to_string() }), "{made}");
    hosts.until(1, &status, |status| status["primary"] == "n1");
    let mut writer = Client::until(ports.rw, "n1");

    // The list grows while a connection is open, which stays.
    let changed = hosts.say(0, &format!("balance set orders --to n2={two}")).done();
    assert_eq!((&changed["changed"], &changed["before"]["databases"]), (&json!(true), &made["databases"]));
    let found = hosts.until(1, &status, |status| ids(status, "reads") == ["n2"]);
    assert_eq!(ids(&found, ""), ["n1", "n2"]);
    Client::until(ports.ro, "n2");
    assert!(writer.is_open(), "a change of the list drops nothing");
    let again = hosts.say(0, &format!("balance set orders --to n2={two}")).done();
    assert_eq!(again["changed"], false);
    hosts.say(0, "balance set orders").failed(2, "WRONG_USE");
    let missed = hosts.say(0, "balance set orders --without n3").failed(3, "DATABASE_UNKNOWN");
    assert!(missed.contains("did you mean n"), "{missed}");
    hosts.say(0, "balance set orders --off ams-1").failed(3, "NOT_ON");
    hosts.say(0, "balance show order").failed(3, "BALANCER_UNKNOWN");

    // Everybody says how it does: the node itself, and the cluster by its reports. What a node shows of its actors may be
    // a tenth of a second old, while the balancer's own port above is not.
    let here = hosts.until(1, "balance show orders", |shown| shown["here"]["status"]["primary"] == "n1");
    assert_eq!(here["here"]["standing"], "running", "{here}");
    hosts.until(1, "status", |own| own["balancers"][0]["status"]["primary"] == "n1");
    // A node reports every few seconds: until then the cluster knows an older list, or a balancer that has just begun.
    hosts.until(0, "balancer list", |list| {
        let on = &list["balancers"][0]["on"][0];
        on["current"] == true && on["primary"] == "n1"
    });

    // Without a control node it goes on, follows a failover, and comes back by the last snapshot.
    hosts.signal(0, Signal::KILL);
    {
        let mut says = second.says.lock().unwrap();
        says.role = "PRIMARY".to_owned();
        says.epoch = 2;
    }
    Client::until(ports.rw, "n2");
    assert!(!writer.is_open(), "its node is the primary no more");
    assert_eq!(hosts.signal(1, Signal::TERM), Some(0), "{}", hosts.log(1));
    assert!(TcpStream::connect(ports.rw).is_err());
    hosts.start(1);
    let mut writer = Client::until(ports.rw, "n2");
    hosts.start(0);
    let took = |said: &Value| said["balancer"]["databases"].as_object().is_some_and(|databases| databases.len() == 1);
    hosts.until(0, "balance set orders --without n1", took);
    hosts.until(1, &status, |status| ids(status, "") == ["n2"]);
    assert!(writer.is_open(), "a change of the list drops nothing");

    // A node that has no file for what it is to run says so, in the cluster's status too.
    hosts.say(0, &format!("balance add stock --to s1={one} --on web-1 --on ams-1")).done();
    let told = |status: &Value| {
        let problems = status["problems"].as_array().into_iter().flatten();
        problems
            .filter(|problem| problem["about"].as_str().is_some_and(|about| about.starts_with("balancer stock")))
            .count()
    };
    hosts.until(1, "status", |status| told(status) == 1);
    hosts.until(0, "status", |status| told(status) == 2);
    hosts.say(0, "balance remove stock --yes").done();

    // It goes with its last word.
    hosts.say(1, "leave --yes").failed(3, "NODE_HAS_BALANCERS");
    hosts.say(0, "balance remove orders").failed(3, "NOT_CONFIRMED");
    let removed = hosts.say(0, "balance remove orders --yes").done();
    assert_eq!(removed["on"][0]["node"], "web-1");
    hosts.until(1, "balance list", |list| list["balancers"][0]["on"] == json!([]));
    assert!(!writer.is_open() && TcpStream::connect(ports.rw).is_err());
    hosts.say(1, &status).failed(3, "BALANCER_NOT_LISTED");
}

// DB-40, DB-43: the files of a node's balancers are checked with its own configuration.
#[test]
fn the_files_of_a_nodes_balancers_are_checked_with_its_configuration() {
    let hosts = Hosts::new(1);
    let ports = Ports::new();
    let check = |files: &str| {
        hosts.configure(0, &format!("[balancers]\n{files}"));
        hosts.say(0, "config check")
    };
    fs::write(hosts.path("good.toml"), ports.file("")).unwrap();
    check("good = \"good.toml\"\n").done();
    let shown = hosts.say(0, "config show").done();
    let rows = shown["settings"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["key"] == "balancers.good"), "{shown}");
    fs::write(hosts.path("listed.toml"), ports.file("[nodes]\nn1 = \"127.0.0.1:1\"")).unwrap();
    let said = check("listed = \"listed.toml\"\n").failed(1, "CONFIG_INVALID");
    assert!(
        said.contains("listed.toml:1:1: [nodes] stands in the file of a balancer whose list the cluster has"),
        "{said}"
    );
    let said = check("good = \"good.toml\"\nsecond = \"good.toml\"\n").failed(1, "CONFIG_INVALID");
    assert!(said.contains("proxy.rw of second is") && said.contains("and so is proxy.rw of good"), "{said}");
    check("none = \"nowhere.toml\"\n").failed(1, "CONFIG_UNREADABLE");
    let said = check("No = \"good.toml\"\n").failed(1, "CONFIG_INVALID");
    assert!(said.contains("balancers.No must be a name"), "{said}");
    let path = hosts.path("good.toml");
    hosts.say(0, &format!("balance check --role {}", path.display())).done();
    hosts.say(0, &format!("balance check {}", path.display())).failed(1, "CONFIG_INVALID");
}

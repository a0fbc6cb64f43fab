//! The commands as an operator meets them: real processes on loopback, from nothing to a cluster that loses a node.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/hosts.rs"]
mod hosts;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use hosts::{Hosts, PATIENCE, Said};
use rustix::process::Signal;
use serde_json::Value;

/// A target that says back what it hears.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut heard = [0; 4_096];
                while let Ok(length @ 1..) = stream.read(&mut heard) {
                    if stream.write_all(&heard[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn from_nothing_to_bytes_through_a_link() {
    let mut hosts = Hosts::new(4);
    let passphrase = hosts.path("empty");
    fs::write(&passphrase, "\n").unwrap();
    let line = |authority: &str, passphrase: &str| {
        let (address, authority, passphrase) = (hosts.address(0), hosts.path(authority), hosts.path(passphrase));
        let (authority, passphrase) = (authority.display(), passphrase.display());
        format!("init harbour --advertise {address} --authority {authority} --passphrase-file {passphrase}")
    };
    hosts.say(0, &line("authority", "empty")).failed(3, "PASSPHRASE_EMPTY");
    assert!(!hosts.path("authority").exists());
    hosts.say(0, "node").failed(3, "NOT_JOINED");
    let absent = hosts.say(0, "status").failed(4, "NOT_REACHABLE");
    assert!(absent.contains("postroad --data"), "it says how to start the node: {absent}");
    let again = line("authority", "passphrase");
    let second = line("authority-2", "passphrase");
    hosts.found();
    hosts.say(0, &again).failed(3, "AUTHORITY_EXISTS");
    // A second process is kept out while the first one runs, whatever it wants.
    let in_use = hosts.say(0, "node");
    assert_eq!(in_use.exit, 3, "{in_use:?}");
    hosts.say(0, &second).failed(3, "DATA_IN_USE");
    assert!(!hosts.path("authority-2").exists(), "what was not founded leaves no authority behind");

    // Tokens: a typo, another cluster's fingerprint, used, expired, revoked. Case R12.
    let token = hosts.token("node");
    let good = Hosts::join(&token, "web-1");
    hosts.say(1, &good.replace("prt1-", "prt1-a")).failed(2, "TOKEN_MALFORMED");
    let fingerprint = token["fingerprint"].as_str().unwrap();
    let wrong = hosts.say(1, &good.replace(fingerprint, &"0".repeat(64)));
    assert_eq!(wrong.exit, 3, "nothing is proved to another cluster: {wrong:?}");
    let joined = hosts.say(1, &good).done();
    assert_eq!((joined["node"].as_str(), joined["id"].as_u64()), (Some("web-1"), Some(2)));
    let used = hosts.say(2, &Hosts::join(&token, "db-1")).failed(3, "TOKEN_USED");
    assert!(used.contains("web-1") && used.contains("postroad token create"), "{used}");
    let rejoined = hosts.say(1, &good).failed(3, "ALREADY_JOINED");
    assert!(rejoined.contains("web-1"), "it names the node: {rejoined}");
    let expired = hosts.say(0, "token create --role node --valid-for 1s").done();
    std::thread::sleep(Duration::from_millis(1_100));
    hosts.say(2, &Hosts::join(&expired, "db-1")).failed(3, "TOKEN_EXPIRED");
    let revoked = hosts.token("node");
    hosts.say(0, &format!("token revoke {}", revoked["token"].as_str().unwrap())).done();
    hosts.say(2, &Hosts::join(&revoked, "db-1")).failed(3, "TOKEN_REVOKED");
    hosts.say(0, "token create --role captain").failed(2, "WRONG_USE");
    let token = hosts.token("node");
    hosts.say(2, &Hosts::join(&token, "db-1")).done();
    hosts.start(1);
    hosts.start(2);

    // A link, and bytes through it.
    let target = echo();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unknown = hosts.say(0, &format!("link add db --from web-2={listen} --to db-1=127.0.0.1:{target}"));
    assert!(unknown.failed(3, "NODE_UNKNOWN").contains("did you mean web-1"));
    hosts.say(0, &format!("link add db --from web-1={listen} --to db-1=127.0.0.1:{target}")).done();
    // RP-10: over how many relays it is spread, within bounds, as the link itself says on any of its nodes.
    assert_eq!(hosts.say(0, "link show db").done()["spread"], 2);
    let beyond = hosts.say(0, "link set db --spread 9").failed(3, "SETTING_OUT_OF_BOUNDS");
    assert!(beyond.contains("must be from 1 to 8"), "{beyond}");
    let set = hosts.say(0, "link set db --spread 3").done();
    assert_eq!((&set["before"], &set["link"]["spread"]), (&2.into(), &3.into()), "{set}");
    assert_eq!(hosts.say(0, "link list").done()["links"][0]["spread"], 3);
    hosts.until(1, "status", |status| status["links"][0]["spread"] == 3);
    let links = |status: &Value| status["links"][0]["listener"] == "open" && status["circuits"][0]["connected"] == true;
    let status = hosts.until(1, "status", links);
    assert_eq!(status["circuits"][0]["relay_name"], "ams-1", "{status:#}");
    assert!(status["circuits"][0]["choice"].as_str().unwrap().contains("ams-1"), "why that relay: {status:#}");
    hosts.until(2, "status", |status| status["links"][0]["registered_at"][0] == "ams-1");
    let mut stream = TcpStream::connect(listen).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    let mut writing = stream.try_clone().unwrap();
    let content = sent.clone();
    let writer = std::thread::spawn(move || {
        writing.write_all(&content).unwrap();
        writing.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent, "{} of {} bytes came back, or others", received.len(), sent.len());

    // What status says of it all, and settings within their bounds.
    // What the link carries, and how it bears the death of its only relay: it waits for it, and nothing is lost.
    let measured = hosts.say(1, "link test db --seconds 1 --kill-relay --yes").done();
    assert!(measured["latency"]["exchanges"].as_u64() > Some(10), "{measured}");
    assert!(measured["throughput"]["bytes"].as_u64() > Some(1 << 20), "{measured}");
    let death = &measured["death"];
    assert_eq!((death["relay"].as_str(), death["to"].as_str()), (Some("ams-1"), None), "{death}");
    assert_eq!(death["messages"].as_u64(), death["round_trips_us"].as_array().map(|all| all.len() as u64));
    assert!(death["stall_us"].as_u64() > Some(2_000_000), "{death}");
    hosts.say(1, "link test db --kill-relay").failed(3, "NOT_CONFIRMED");
    hosts.say(0, "link test db").failed(3, "LINK_UNKNOWN");

    let status = hosts.until(0, "status", |status| status["link_count"] == 1 && status["relays"]["ready"] == 1);
    assert_eq!(status["can_lose"]["controls"], 0);
    assert_eq!(status["health"], "at-risk");
    let problems: Vec<&str> =
        status["problems"].as_array().unwrap().iter().filter_map(|problem| problem["code"].as_str()).collect();
    // RP-4: with one relay on the one control node, status says so.
    assert!(problems.contains(&"RELAYS_ONE") && problems.contains(&"CONTROL_FEW_VOTERS"), "{problems:?}");
    hosts.say(0, "setting set policy_lease_hours 169").failed(3, "SETTING_OUT_OF_BOUNDS");
    let near = hosts.say(0, "setting set policy_lease_hour 48").failed(3, "SETTING_UNKNOWN");
    assert!(near.contains("policy_lease_hours"), "{near}");
    hosts.say(0, "setting set policy_lease_hours 48").done();
    assert_eq!(hosts.say(0, "setting show policy_lease_hours").done()["value"], 48);
    hosts.say(1, "setting list").failed(3, "NOT_CONTROL");

    // RP-6: the printed command makes a relay of a host and goes on as its node.
    let relay = hosts.say(0, &format!("relay add fra-1 --advertise {}", hosts.address(3))).done();
    let line = relay["command"].as_str().unwrap();
    let (secret, arguments) = line.split_once(" postroad ").unwrap();
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let mut command = hosts.command(3, &arguments);
    command.env("POSTROAD_JOIN_TOKEN", secret.strip_prefix("POSTROAD_JOIN_TOKEN=").unwrap());
    hosts.nodes[3] = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    hosts.until(0, "status", |status| status["relays"]["ready"] == 2);
    assert_eq!(hosts.say(0, "status").done()["can_lose"]["relays"], 1, "RP-3: their domains differ");

    drains(&mut hosts, listen);
    short_flows(&hosts, listen);
    retarget(&hosts, listen);

    // Leaving: not with links, then for good; SIGTERM stops in order and leaves no socket behind.
    hosts.say(1, "leave --yes").failed(3, "NODE_HAS_LINKS");
    hosts.say(0, "node remove web-1").failed(3, "NOT_CONFIRMED");
    hosts.say(0, "link remove db").done();
    hosts.say(1, "leave --yes").done();
    assert_eq!(hosts.nodes[1].as_mut().unwrap().wait().unwrap().code(), Some(0));
    hosts.say(1, "node").failed(3, "NODE_LEFT");
    assert_eq!(hosts.signal(0, Signal::TERM), Some(0), "{}", hosts.log(0));
    assert!(!hosts.path("data-0/api.sock").exists());
    hosts.say(0, "status").failed(4, "NOT_REACHABLE");
}

/// RP-40, RP-41: a drain moves what is there and is over; resumed, all is as before. Refusals name what is missing.
fn drains(hosts: &mut Hosts, listen: SocketAddr) {
    hosts.say(0, "relay drain web-1").failed(3, "ROLE_MISSING");
    hosts.say(0, "relay drain fra-2").failed(3, "NODE_UNKNOWN");
    hosts.say(0, "relay force-disconnect fra-1").failed(3, "NOT_CONFIRMED");
    hosts.say(0, "relay force-disconnect fra-1 --yes").failed(3, "RELAY_NOT_DRAINING");
    let spare = |status: &Value| {
        let channels = status["circuits"][0]["channels"].as_array().cloned().unwrap_or_default();
        channels.iter().filter(|channel| channel["candidate"] == true).count() == 2
    };
    hosts.until(1, "status", spare);
    hosts.until(2, "status", spare);
    let mut open = TcpStream::connect(listen).unwrap();
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut echoes = |text: &[u8]| {
        let mut back = vec![0; text.len()];
        open.write_all(text).unwrap();
        open.read_exact(&mut back).unwrap();
        assert_eq!(back, text);
    };
    echoes(b"before");
    let carriers = |status: &Value| {
        let circuits = status["circuits"].as_array().cloned().unwrap_or_default();
        let carries = circuits.into_iter().filter(|circuit| circuit["flows"] == 1);
        carries.filter_map(|circuit| Some(circuit["relay_name"].as_str()?.to_owned())).collect::<Vec<_>>()
    };
    let carrier = carriers(&hosts.until(1, "status", |status| !carriers(status).is_empty())).remove(0);
    // The end that dials tells of the circuit, which may be younger than its last report.
    hosts.until(0, &format!("relay show {carrier}"), |shown| {
        shown["carries"].as_array().is_some_and(|all| all.iter().any(|circuit| circuit["flows"] == 1))
    });
    let drained = hosts.say(0, &format!("relay drain {carrier}")).done();
    assert_eq!((drained["over"].as_bool(), drained["flows_left"].as_u64()), (Some(true), Some(0)), "{drained:#}");
    // An empty circuit of the pair may have been there too.
    let moved = drained["moved"].as_array().cloned().unwrap_or_default();
    assert_eq!(moved.iter().filter_map(|circuit| circuit["flows"].as_u64()).sum::<u64>(), 1, "{drained:#}");
    echoes(b"after");
    assert!(!carriers(&hosts.say(1, "status").done()).contains(&carrier));
    assert_eq!(hosts.say(0, "relay list").done()["draining"], 1);
    hosts.say(0, &format!("relay drain {carrier}")).done();
    assert_eq!(hosts.say(0, &format!("relay resume {carrier}")).done()["changed"], true);
    assert_eq!(hosts.say(0, &format!("relay resume {carrier}")).done()["changed"], false);
    echoes(b"resumed");

    hosts.signal(3, Signal::KILL);
    hosts.until(0, "relay show fra-1", |shown| shown["relay"]["connected"] == false);
    hosts.say(0, "relay resume fra-1").failed(3, "RELAY_NOT_CONNECTED");
    hosts.say(0, "relay force-disconnect fra-1 --yes").failed(3, "RELAY_NOT_CONNECTED");
    assert_eq!(hosts.say(0, "relay drain fra-1").done()["connected"], false);
    hosts.start(3);
    hosts.until(0, "relay show fra-1", |shown| shown["relay"]["drain"]["progress"]["phase"] == "over");
    hosts.say(0, "relay resume fra-1").done();
}

/// R4: thousands of short flows leave no flow and no memory behind, within 10 %. The first ones fill what is kept.
fn short_flows(hosts: &Hosts, listen: SocketAddr) {
    const ROUNDS: u32 = 3;
    let flows = |count: usize| {
        let one = move || {
            for _ in 0..count / 8 {
                let mut stream = TcpStream::connect(listen).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"short").unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).unwrap();
                assert_eq!(back, b"short");
            }
        };
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(one)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        for host in [1, 2] {
            hosts.until(host, "status", |status| status["flows"]["open"] == 0);
        }
    };
    let pages = |host: usize| {
        let pid = hosts.nodes[host].as_ref().unwrap().id();
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    flows(2_000);
    let mut before = [0, 1, 2, 3].map(pages);
    // What is kept fills when a burst first comes that large, perhaps late; what is lost is lost by every round.
    for _ in 0..ROUNDS {
        flows(4_000);
        let after = [0, 1, 2, 3].map(pages);
        if before.into_iter().zip(after).all(|(before, after)| after * 10 <= before * 11) {
            return;
        }
        println!("{before:?} pages, then {after:?}");
        before = after;
    }
    panic!("memory grew by more than 10 % in each of {ROUNDS} rounds");
}

/// RP-31, RP-35: a link leads elsewhere: connections to the old target end, new ones get the new one and are held while
/// it is registered, never refused.
fn retarget(hosts: &Hosts, listen: SocketAddr) {
    let before = hosts.say(0, "link show db").done();
    let address = before["to"]["address"].as_str().unwrap().to_owned();
    let mut old = TcpStream::connect(listen).unwrap();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    old.write_all(b"old").unwrap();
    old.read_exact(&mut [0; 3]).unwrap();
    let port = echo();
    hosts.say(0, "link retarget dc --to 127.0.0.1:1").failed(3, "LINK_UNKNOWN");
    hosts.say(0, "link retarget db --to 127.0.0.1").failed(2, "WRONG_USE");
    let done = hosts.say(0, &format!("link retarget db --to 127.0.0.1:{port}")).done();
    assert_eq!((done["changed"].as_bool(), done["before"].as_str()), (Some(true), Some(&*address)));
    assert_eq!(done["link"]["generation"], 2);
    let broken = old.read(&mut [0; 8]).unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
    for _ in 0..20 {
        let mut new = TcpStream::connect(listen).unwrap();
        new.set_read_timeout(Some(PATIENCE)).unwrap();
        new.write_all(b"new").unwrap();
        let mut back = [0; 3];
        new.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"new");
    }
    assert_eq!(hosts.say(0, &format!("link retarget db --to 127.0.0.1:{port}")).done()["changed"], false);
}

fn promote(hosts: &Hosts, host: usize, name: &str) -> Said {
    let (authority, passphrase) = (hosts.path("authority"), hosts.path("passphrase"));
    let (authority, passphrase) = (authority.display(), passphrase.display());
    hosts.say(host, &format!("control promote {name} --authority {authority} --passphrase-file {passphrase}"))
}

#[test]
fn three_control_nodes_lose_one_and_take_it_back() {
    let mut hosts = Hosts::new(3);
    hosts.found();
    for (host, name) in [(1, "ams-2"), (2, "ams-3")] {
        let line = format!("{} --advertise {}", Hosts::join(&hosts.token("control"), name), hosts.address(host));
        hosts.say(host, &line).done();
        hosts.start(host);
        let elsewhere = promote(&hosts, 0, name).failed(3, "CONTROL_ELSEWHERE");
        assert!(elsewhere.contains(&format!("On {name}")), "{elsewhere}");
        let data = promote(&hosts, host, name).done();
        assert_eq!((data["certified"].as_bool(), data["voted"].as_bool()), (Some(true), Some(true)));
    }
    fs::write(hosts.path("passphrase"), "something else").unwrap();
    // Once it is done, nothing is opened, and so nothing is asked of the passphrase.
    assert_eq!(promote(&hosts, 1, "ams-2").done()["certified"], false);
    let voters = |control: &Value| {
        let members = control["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter(|member| member["votes"] == true && member["live"] == true).count()
    };
    hosts.until(1, "control list", |control| voters(control) == 3);
    assert_eq!(hosts.say(2, "status").done()["can_lose"]["controls"], 1);

    // The leader dies; the others decide without it, and say so.
    hosts.signal(0, Signal::KILL);
    let led = |status: &Value| status["control"]["leader"].as_u64().is_some_and(|leader| leader > 1);
    hosts.until(1, "status", led);
    hosts.until(1, "setting set flow_wait_seconds 90", |_| true);
    let status = hosts.until(2, "status", |status| led(status) && status["can_lose"]["controls"] == 0);
    let silent = status["problems"].as_array().unwrap().iter().find(|problem| problem["code"] == "CONTROL_SILENT");
    assert_eq!(silent.map(|problem| &problem["about"]), Some(&Value::from("control ams-1")), "{status:#}");
    // Taking one more would leave nobody to decide.
    hosts.say(1, "control demote ams-3").failed(3, "QUORUM_WOULD_BE_LOST");

    // It comes back with what was decided meanwhile.
    hosts.start(0);
    hosts.until(0, "setting show flow_wait_seconds", |setting| setting["value"] == 90);
    hosts.until(0, "control list", |control| voters(control) == 3);
    let before = hosts.say(0, "control list").done()["leader"].as_u64();
    hosts.until(2, "control step-down", |_| true);
    hosts.until(0, "control list", |control| voters(control) == 3 && control["leader"].as_u64() != before);
    hosts.say(0, "control remove ams-3 --yes").done();
    hosts.until(1, "control list", |control| voters(control) == 2 && control["members"].as_array().unwrap().len() == 2);
    assert!(hosts.say(1, "node list").done()["nodes"].as_array().unwrap().iter().all(|node| node["name"] != "ams-3"));
}

/// DB-48: the unit is one that systemd takes, and what it says about the data directory is what was asked for.
#[test]
fn a_service_is_installed_and_removed() {
    let hosts = Hosts::new(1);
    let units = hosts.path("units");
    let line = |verb: &str| format!("service {verb} --units {}", units.display());
    hosts.say(0, &line("install")).failed(1, "SERVICE_FAILED");
    fs::create_dir(&units).unwrap();
    let installed = hosts.say(0, &line("install")).done();
    let text = fs::read_to_string(units.join("postroad.service")).unwrap();
    assert_eq!(installed["text"], text.as_str());
    assert!(text.contains(&format!("ReadWritePaths={}", hosts.path("data-0").display())), "{text}");
    hosts.say(0, &format!("{} --database-balancer /etc/postroad/proxy.toml", line("install"))).done();
    for unit in ["postroad.service", "postroad-database-balancer.service"] {
        if let Some(complaints) = complaints_of_systemd(&units.join(unit)) {
            assert_eq!(complaints, "", "{unit}");
        }
    }
    hosts.say(0, &line("remove")).failed(3, "NOT_CONFIRMED");
    hosts.say(0, &format!("{} --yes", line("remove"))).done();
    assert!(!units.join("postroad.service").exists());
    hosts.say(0, &format!("{} --yes", line("remove"))).failed(3, "SERVICE_UNKNOWN");
}

/// What systemd finds wrong with a unit; nothing where systemd is missing, unless everything must be there.
fn complaints_of_systemd(unit: &std::path::Path) -> Option<String> {
    match Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(unit).output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) if std::env::var_os("POSTROAD_REQUIRE_ALL").is_none() => {
            eprintln!("skipped: systemd-analyze is missing ({error})");
            None
        }
        Err(error) => panic!("systemd-analyze is missing ({error})"),
    }
}

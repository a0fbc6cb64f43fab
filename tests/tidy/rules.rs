//! The rules as data: who may import whom, which words are banned where, what may not be left in a file.

/// A crate of ours, or a library that lives in one place.
pub(crate) struct Import {
    /// The crate as Cargo spells it.
    pub(crate) library: &'static str,
    /// Beginnings of paths that may name it.
    pub(crate) allowed: &'static [&'static str],
    /// Why only these.
    pub(crate) why: &'static str,
}

/// What the program and its tests are made of.
const PRODUCT: &[&str] = &["src/", "tests/", "Cargo.toml"];

/// Who may name which library, outside tests. Whatever is not here may be named by all.
pub(crate) const IMPORTS: &[Import] = &[
    Import {
        library: "postroad-trust",
        allowed: &["cluster/trust/", "cluster/transport/", "actors/", "simulations/", "src/", "tests/", "Cargo.toml"],
        why: "behaviors receive what is verified, and never verify",
    },
    Import {
        library: "postroad-store",
        allowed: &["cluster/store/", "cluster/raft/", "actors/", "simulations/", "src/", "tests/", "Cargo.toml"],
        why: "behaviors keep nothing and the transport stores nothing",
    },
    Import {
        library: "postroad-raft",
        allowed: &["cluster/raft/", "actors/", "simulations/", "src/", "tests/", "Cargo.toml"],
        why: "only actors talk to the Raft group",
    },
    Import {
        library: "postroad-transport",
        allowed: &["cluster/transport/", "actors/", "simulations/", "src/", "tests/", "Cargo.toml"],
        why: "only actors talk to the transport; Raft's messages reach it through them",
    },
    Import {
        library: "postroad-actors",
        allowed: &["actors/", "simulations/", "src/", "tests/", "Cargo.toml"],
        why: "no layer knows the one above it",
    },
    Import {
        library: "postroad-simulations",
        allowed: &["simulations/"],
        why: "the product never depends on its proof",
    },
    Import { library: "postroad", allowed: PRODUCT, why: "the simulation proves the layers below the product" },
    Import {
        library: "ring",
        allowed: &["cluster/trust/", "cluster/transport/"],
        why: "cryptography lives in the trust crate; the transport needs it for QUIC's own keys",
    },
    Import { library: "rcgen", allowed: &["cluster/trust/"], why: "certificates are made in the trust crate" },
    Import { library: "rustls-webpki", allowed: &["cluster/trust/"], why: "chains are verified in the trust crate" },
    Import { library: "webpki", allowed: &["cluster/trust/"], why: "chains are verified in the trust crate" },
    Import { library: "x509-parser", allowed: &["cluster/trust/"], why: "certificates are read in the trust crate" },
    Import { library: "redb", allowed: &["cluster/store/"], why: "the database lives in the store crate" },
    Import { library: "openraft", allowed: &["cluster/raft/"], why: "its types change between releases" },
    Import { library: "openraft-rt", allowed: &["cluster/raft/"], why: "its types change between releases" },
    Import { library: "openraft-rt-tokio", allowed: &["cluster/raft/"], why: "its types change between releases" },
    Import {
        library: "quinn",
        // Its traits are how a relay's and a node's sockets deliver what hostile buffers held.
        allowed: &["cluster/transport/", "tests/fuzz/"],
        why: "QUIC lives in the transport crate",
    },
    Import { library: "quinn-proto", allowed: &["cluster/transport/"], why: "QUIC lives in the transport crate" },
    Import {
        library: "quinn-udp",
        allowed: &["cluster/transport/", "src/net", "simulations/src/net", "tests/ports.rs", "Cargo.toml"],
        why: "only the network ports handle raw packets",
    },
    Import { library: "rustls", allowed: &["cluster/transport/"], why: "TLS lives in the transport crate" },
    Import {
        library: "tokio-rustls",
        allowed: &["src/balancer/probe", "src/console/door.rs", "Cargo.toml"],
        why: "a database's TLS lies within its protocol, so it belongs to the probes; a browser's is at the console's door",
    },
    Import {
        library: "tokio-postgres",
        allowed: &["src/balancer/probe", "tests/", "Cargo.toml"],
        why: "the balancer passes bytes on; only its probes speak to databases",
    },
    Import {
        library: "mysql_async",
        allowed: &["src/balancer/probe", "tests/", "Cargo.toml"],
        why: "the balancer passes bytes on; only its probes speak to databases",
    },
    Import { library: "ractor", allowed: &["actors/"], why: "actors live in one crate" },
    Import {
        library: "bincode",
        allowed: &["cluster/src/wire", "cluster/Cargo.toml"],
        why: "it is to be replaced one day",
    },
    Import { library: "axum", allowed: PRODUCT, why: "HTTP is the product's" },
    Import { library: "hyper", allowed: PRODUCT, why: "HTTP is the product's" },
    Import { library: "hyper-util", allowed: PRODUCT, why: "HTTP is the product's" },
    Import { library: "http-body-util", allowed: PRODUCT, why: "HTTP is the product's" },
    Import {
        library: "tokio",
        allowed: &[
            "cluster/trust/",
            "cluster/store/",
            "cluster/raft/",
            "cluster/transport/",
            "actors/",
            "simulations/",
            "src/",
            "tests/",
            "Cargo.toml",
        ],
        why: "behaviors know no async",
    },
];

/// Crates whose types reach a port's own signature: the port re-exports just these paths.
pub(crate) const EXCEPTIONS: &[(&str, &str)] = &[("quinn::udp", "src/net"), ("quinn::udp", "simulations/src/net")];

/// Manifests that name a library only for such an exception.
pub(crate) const MANIFEST_EXCEPTIONS: &[(&str, &str)] =
    &[("quinn", "Cargo.toml"), ("quinn", "simulations/Cargo.toml"), ("quinn-udp", "simulations/Cargo.toml")];

/// Words that code may not contain, and where.
pub(crate) struct Ban {
    /// The word, as code.
    pub(crate) word: &'static str,
    /// Beginnings of paths where it is banned.
    pub(crate) within: &'static [&'static str],
    /// Beginnings of paths that are excepted.
    pub(crate) except: &'static [&'static str],
    /// Why.
    pub(crate) why: &'static str,
    /// What to do instead.
    pub(crate) instead: &'static str,
}

/// Every crate that the simulation links.
const SIMULATED: &[&str] = &["cluster/", "actors/", "simulations/"];
/// The crate of the behaviors alone.
const BEHAVIORS: &[&str] = &["cluster/src/"];
const NOWHERE: &[&str] = &[];
/// quinn's trait for a runtime names a socket that is never made.
const QUINN: &[&str] = &["cluster/transport/src/runtime.rs"];
const ONE_SEED: &str = "one seed would no longer be one world";
const CLOCK: &str = "take `now` as an argument, or the clock port";

/// Banned words.
pub(crate) const BANS: &[Ban] = &[
    Ban { word: "tokio::fs", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "use the disk port" },
    Ban { word: "std::fs", within: SIMULATED, except: &["simulations/"], why: ONE_SEED, instead: "use the disk port" },
    Ban { word: "tokio::net", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "use the network port" },
    Ban { word: "net::TcpStream", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "use the network port" },
    Ban { word: "net::UdpSocket", within: SIMULATED, except: QUINN, why: ONE_SEED, instead: "use the network port" },
    Ban { word: "tokio::signal", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "handle signals in src" },
    Ban { word: "task::spawn_blocking", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "call it inline" },
    Ban { word: "task::block_in_place", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "call it inline" },
    Ban { word: "SystemTime::now", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: CLOCK },
    Ban {
        word: "std::time::Instant::now",
        within: SIMULATED,
        // How many virtual seconds a real one buys is no part of a world.
        except: &["simulations/src/run.rs"],
        why: ONE_SEED,
        instead: CLOCK,
    },
    Ban { word: "rand::rng", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "use the entropy port" },
    Ban { word: "rand::random", within: SIMULATED, except: NOWHERE, why: ONE_SEED, instead: "use the entropy port" },
    Ban {
        word: "sync::watch",
        within: SIMULATED,
        except: NOWHERE,
        why: "it wakes in random order",
        instead: "use a channel of ours or tokio's Notify",
    },
    Ban {
        word: "HashMap",
        within: SIMULATED,
        except: NOWHERE,
        why: "its order differs from run to run",
        instead: "use a BTreeMap",
    },
    Ban {
        word: "HashSet",
        within: SIMULATED,
        except: NOWHERE,
        why: "its order differs from run to run",
        instead: "use a BTreeSet",
    },
    Ban {
        word: "thread::spawn",
        within: SIMULATED,
        except: &["cluster/store/", "simulations/"],
        why: "threads interleave differently from run to run",
        instead: "spawn a task; only the store's writer and a seed of the simulation have threads",
    },
    Ban {
        word: "get_children",
        within: SIMULATED,
        except: NOWHERE,
        why: "it walks a hash map",
        instead: "keep children in a BTreeMap",
    },
    Ban {
        word: "stop_children",
        within: SIMULATED,
        except: NOWHERE,
        why: "it walks a hash map",
        instead: "stop children one by one",
    },
    Ban {
        word: "drain_children",
        within: SIMULATED,
        except: NOWHERE,
        why: "it walks a hash map",
        instead: "stop children one by one",
    },
    Ban {
        word: "ractor::registry",
        within: SIMULATED,
        except: NOWHERE,
        why: "it is one for the process, and a simulation has many nodes",
        instead: "use the node's directory",
    },
    Ban {
        word: "ractor::pg",
        within: SIMULATED,
        except: NOWHERE,
        why: "its groups are the process's, and a simulation has many nodes",
        instead: "use the node's directory",
    },
    Ban {
        word: "async fn",
        within: BEHAVIORS,
        except: NOWHERE,
        why: "behaviors are plain functions",
        instead: "make an effect of it",
    },
    Ban { word: "std::time", within: BEHAVIORS, except: NOWHERE, why: "behaviors read no clock", instead: CLOCK },
    Ban {
        word: "std::thread",
        within: BEHAVIORS,
        except: NOWHERE,
        why: "behaviors are plain functions",
        instead: "make an effect of it",
    },
    Ban {
        word: "println!",
        within: SIMULATED,
        except: &["simulations/"],
        why: "standard output belongs to commands",
        instead: "use tracing",
    },
    Ban {
        word: "Verified::vouch",
        within: &["cluster/", "actors/", "simulations/", "src/"],
        except: &["cluster/trust/"],
        why: "whoever vouches without checking opens the cluster",
        instead: "verify through postroad-trust",
    },
    Ban {
        word: ".unwrap()",
        within: &["cluster/", "actors/", "src/", "simulations/src/"],
        except: NOWHERE,
        why: "bad input may never panic, and a panic should say why it cannot be",
        instead: "return an error, or `expect` with the reason why it cannot happen",
    },
    Ban {
        word: "dbg!",
        within: &["cluster/", "actors/", "src/", "simulations/", "tests/"],
        except: NOWHERE,
        why: "it is for the moment",
        instead: "remove it",
    },
];

/// What may stand nowhere in a file, be it code or not; `except` are the rules and their own tests.
pub(crate) const LEFT_OVER: &[(&str, &str, &str)] = &[
    ("TODO", "unfinished work hides in comments", "do it, or write an issue"),
    ("FIXME", "unfinished work hides in comments", "do it, or write an issue"),
    ("XXX", "unfinished work hides in comments", "do it, or write an issue"),
    ("todo!(", "unfinished work panics in production", "write it"),
    ("unimplemented!(", "unfinished work panics in production", "write it"),
    ("#[ignore", "a test that nobody runs proves nothing", "run it always, or remove it"),
    ("/work/", "a path of one machine fails on all others", "make it relative or a flag"),
    ("/root/", "a path of one machine fails on all others", "make it relative or a flag"),
    ("sparse+http", "a private registry fails on all other machines", "use crates.io"),
    ("[source.", "a private registry fails on all other machines", "use crates.io"),
];

/// Files that must name what is banned.
pub(crate) const RULE_FILES: &[&str] = &["tests/tidy.rs", "tests/tidy/"];

/// The longest file, its tests apart.
pub(crate) const LINES_MAX: usize = 500;

/// The requirements that exist: prefix, highest number, and the numbers below it that were never given.
pub(crate) const REQUIREMENTS: &[(&str, u32, &[u32])] = &[
    ("RP", 71, &[19, 23, 63, 67]),
    ("AV", 65, &[8, 9, 18, 19, 28, 39, 48, 49, 56, 57, 58, 59]),
    ("MH", 26, &[3, 4, 5, 6, 7, 8, 9, 17, 19]),
    ("CA", 14, &[9]),
    ("DB", 48, &[9, 18, 19, 24, 25, 26, 27, 28, 29, 36, 37, 38, 39]),
];

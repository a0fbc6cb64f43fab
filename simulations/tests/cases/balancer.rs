//! A database balancer as a role of a node: its list of database nodes is the cluster's.

use std::{collections::BTreeSet, future::poll_fn, io::IoSlice, sync::Arc, time::Duration};

use postroad_actors::balancer::{BalancerHandle, status::Status};
use postroad_cluster::{
    balancer::proxy_header::{Header, TrustedSources},
    command::{Action, BalancerSpec},
    id::{Name, Role},
};
use postroad_simulations::{
    balancers::role::{Beside, Client, connect},
    network::Condition,
    world::{Plan, World},
};
use postroad_transport::network::TcpStream;

use crate::support::{AMS, End, Fleet, NEAR_PORT, ended, run, seconds, until, within};

const WEB: usize = 1;

fn orders() -> Name {
    "orders".parse().unwrap()
}

/// A control node and a node that runs the balancer, beside a database cluster.
struct Places {
    world: World,
    databases: Beside,
}

impl Places {
    async fn new(seed: u64) -> Self {
        let mut world = World::new(seed, Condition::default(), None);
        world.add(Plan { name: "ams", role: Role::Control });
        world.add(Plan { name: "web", role: Role::Node });
        let databases = Beside::new(seed, &world.fabric);
        let setup = databases.setup(world.machines[WEB].host);
        world.balances(WEB, "orders", setup);
        world.found(AMS).await.unwrap();
        world.join(WEB).await.unwrap();
        Self { world, databases }
    }

    fn spec(&self, databases: usize) -> BalancerSpec {
        let on = BTreeSet::from([self.world.machines[WEB].id.unwrap()]);
        BalancerSpec { databases: Beside::listed(databases), on }
    }

    /// The balancer leads to so many database nodes from now on.
    async fn list(&self, databases: usize) {
        let consensus = self.world.machines[AMS].node.as_ref().unwrap().fabric().consensus.clone().unwrap();
        let known = consensus.state().balancers.get(&orders()).map(|record| record.changed);
        let (name, spec) = (orders(), self.spec(databases));
        let action = match known {
            None => Action::BalancerAdd { name, spec },
            Some(changed) => Action::BalancerSet { name, spec, changed },
        };
        self.world.propose(action).await.unwrap();
    }

    fn balancer(&self) -> Option<Arc<BalancerHandle>> {
        self.world.machines[WEB].node.as_ref().unwrap().fabric().balancers.get(&orders())
    }

    fn status(&self) -> Option<Status> {
        self.balancer()?.published()
    }

    async fn settled(&self, primary: usize, readers: usize, limit: Duration) {
        let found = || {
            let status = self.status()?;
            let reads = status.nodes.iter().filter(|node| node.report.reads).count();
            Some((status.primary?, reads))
        };
        let what = format!("db-{primary} leads and {readers} nodes take reads");
        until(&what, limit, || found() == Some((Beside::name(primary), readers))).await;
    }

    async fn connect(&self, reads: bool) -> Option<Client> {
        let web = &self.world.machines[WEB];
        connect(&web.applications, web.host, reads).await
    }
}

// DB-43, DB-44: the list comes from the cluster, changes while connections are open and drops none of them, holds
// without a control node and through a restart, and goes with the balancer.
#[test]
fn db43_a_nodes_balancer_works_by_the_clusters_list_with_and_without_the_cluster() {
    run(|| async {
        let mut places = Places::new(43).await;
        assert!(places.balancer().is_none() && places.connect(false).await.is_none(), "nobody has it run yet");

        places.list(3).await;
        places.settled(0, 2, seconds(10)).await;
        let mut writer = places.connect(false).await.expect("the write port leads to db-0");
        let mut reader = places.connect(true).await.expect("the read port leads to a follower");

        // Longer, then shorter: what is open stays.
        places.list(5).await;
        places.settled(0, 4, seconds(10)).await;
        places.list(2).await;
        places.settled(0, 1, seconds(10)).await;
        assert!(writer.is_open().await && reader.is_open().await, "a change of the list drops nothing");
        places.list(4).await;
        places.settled(0, 3, seconds(10)).await;

        // Without a control node it goes on, and follows a failover.
        places.world.crash(AMS);
        places.databases.fail_over(1);
        places.settled(1, 2, seconds(10)).await;
        assert!(!writer.is_open().await, "its node is gone");
        let mut writer = places.connect(false).await.expect("the write port leads to db-1");
        assert_eq!(writer.epoch, 2);

        // Restarted without a control node, it works by the last snapshot.
        places.world.crash(WEB);
        places.world.start(WEB).await.unwrap();
        places.settled(1, 2, seconds(10)).await;
        assert!(!writer.is_open().await);
        let mut writer = places.connect(false).await.expect("by the snapshot on its disk");

        places.world.start(AMS).await.unwrap();
        until("a leader", seconds(10), || places.world.leader() == Some(AMS)).await;
        places.list(5).await;
        places.settled(1, 3, seconds(20)).await;
        assert!(writer.is_open().await, "a change of the list drops nothing");

        // Taken out, it ends; taken in again, it begins anew.
        places.world.propose(Action::BalancerRemove { name: orders() }).await.unwrap();
        until("its end", seconds(10), || places.balancer().is_none()).await;
        assert!(!writer.is_open().await && places.connect(false).await.is_none());
        places.list(5).await;
        places.settled(1, 3, seconds(10)).await;
        assert!(places.connect(false).await.is_some());
    });
}

// DB-30, DB-32: a link takes the header off what trusted machines open, requires it from them, and leaves all that others
// send as it is.
#[test]
fn db30_a_link_takes_proxy_headers_from_trusted_machines_alone() {
    run(|| async {
        let mut fleet = Fleet::new(30, Condition::default(), 1).await;
        let (web, host) = (fleet.web, fleet.world.machines[fleet.web].host);
        let told = Header::Proxied {
            source: "203.0.113.9:51000".parse().unwrap(),
            destination: "198.51.100.1:3306".parse().unwrap(),
        };
        let words = [&told.encode()[..], b"SELECT 1"].concat();
        let heard = async |fleet: &Fleet, words: &[u8]| {
            let mut near = fleet.connect(NEAR_PORT).await;
            write_all(&mut near, words).await;
            let mut far = within("the target is reached", seconds(5), fleet.accept()).await;
            let mut heard = Vec::new();
            while heard.len() < 8 {
                heard.extend(read_some(&mut far).await);
            }
            heard
        };
        assert_eq!(heard(&fleet, &words).await, words, "nobody is trusted yet");

        fleet.world.trusts(web, TrustedSources::parse([host.ip().to_string().as_str()]).unwrap());
        fleet.crash(web);
        fleet.start(web).await;
        fleet.settled().await;
        assert_eq!(heard(&fleet, &words).await, b"SELECT 1");
        let mut without = fleet.connect(NEAR_PORT).await;
        write_all(&mut without, b"SELECT 1").await;
        assert_eq!(within("it is reset", seconds(5), ended(&mut *without.read)).await, End::Reset);
    });
}

async fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = poll_fn(|context| stream.write.poll_write(context, &[IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[written..];
    }
}

async fn read_some(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    poll_fn(|context| stream.read.poll_readable(context)).await.unwrap();
    let count = stream.read.try_read(&mut bytes).unwrap_or_default();
    bytes.truncate(count);
    bytes
}

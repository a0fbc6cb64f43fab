//! Revoked routes: their flows end at both ends whatever the relays know, new grants work, other routes are untouched.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use postroad_cluster::{
    command::{Action, code},
    id::{Generation, LinkId, TunnelId, Version},
    limits::CALL_WAIT,
    wire::session::{RelayRequest, RelayResponse},
};
use postroad_simulations::network::Condition;
use postroad_transport::network::{Network as _, TcpListener};
use tokio::time::Instant;

use crate::support::{
    AMS, End, FAR_PORT, Fleet, Flow, NEAR_PORT, ended, listen, ms, receive, run, seconds, send, within,
};

/// The other link, which is revoked.
const NEAR: u16 = NEAR_PORT + 1;
const FAR: u16 = FAR_PORT + 1;

struct Revoked {
    fleet: Fleet,
    target: Arc<dyn TcpListener>,
    /// A flow of the first link, which nothing may touch.
    bystander: Flow,
    link: LinkId,
    made: u64,
}

impl Revoked {
    async fn new(seed: u64) -> Self {
        let mut fleet = Fleet::new(seed, Condition::default(), 1).await;
        let target = listen(&fleet.world, fleet.db, FAR);
        let bystander = fleet.open().await;
        let mut this = Self { fleet, target, bystander, link: LinkId(0), made: 0 };
        this.grant().await;
        this
    }

    /// Makes the link, anew if it was removed.
    async fn grant(&mut self) {
        self.made += 1;
        let name = format!("other-{}", self.made);
        let (web, db) = (self.fleet.web, self.fleet.db);
        self.link = self.fleet.world.link(&name, &[web], NEAR, db, FAR).await.unwrap();
    }

    async fn revoke(&self) {
        self.fleet.world.propose(Action::LinkRemove { link: self.link }).await.unwrap();
    }

    /// A flow of the link that is to be revoked, proven there.
    async fn open(&self) -> Flow {
        within("a flow of the new grant opens", seconds(5), async {
            loop {
                let web = &self.fleet.world.machines[self.fleet.web];
                let address = SocketAddr::new(web.host.ip(), NEAR);
                let Ok(mut near) = web.applications.tcp_connect(address).await else {
                    tokio::time::sleep(ms(50)).await;
                    continue;
                };
                send(&mut *near.write, 9, 0, 8).await.unwrap();
                let mut far = self.target.accept().await.unwrap();
                assert_eq!(receive(&mut *far.read, 9, 0, 8).await, Ok(()));
                return Flow { near, far, number: 9 };
            }
        })
        .await
    }

    /// Both ends of the flow are reset, the bystander lives. Says how long that took.
    async fn ends(&mut self, mut flow: Flow) -> Duration {
        let began = Instant::now();
        let ends = async { tokio::join!(ended(&mut *flow.near.read), ended(&mut *flow.far.read)) };
        assert_eq!(within("the flow ends", seconds(90), ends).await, (End::Reset, End::Reset));
        let took = began.elapsed();
        within("the other route is untouched", seconds(1), self.bystander.echo()).await;
        took
    }
}

// RP-35: a busy link has tunnels that were admitted ahead of need. They open nothing once their route is gone.
#[test]
fn rp35_what_was_admitted_ahead_opens_no_revoked_route() {
    run(|| async {
        let case = Revoked::new(18).await;
        for _ in 0..20 {
            drop(case.open().await);
        }
        let web = &case.fleet.world.machines[case.fleet.web];
        let address = SocketAddr::new(web.host.ip(), NEAR);
        let mut taken = web.applications.tcp_connect(address).await.expect("the link listens");
        case.revoke().await;
        // What was connected before opens now, if anything did.
        let _ = send(&mut *taken.write, 9, 0, 8).await;
        assert_eq!(within("the connection ends", seconds(5), ended(&mut *taken.read)).await, End::Reset);
        let reaches = async {
            loop {
                // Connections of before, which were opened and never accepted here, send nothing new.
                let mut far = case.target.accept().await.unwrap();
                if receive(&mut *far.read, 9, 0, 8).await.is_ok() {
                    return;
                }
            }
        };
        assert!(tokio::time::timeout(seconds(15), reaches).await.is_err(), "it has reached the target");
    });
}

// R11, RP-35: a flow ends at once when its route is revoked, the relay be it connected, just restarted, or cut off for 89
// and 91 s; then revoked, granted and revoked again within a minute.
#[test]
fn r11_a_revoked_route_ends_its_flows_and_nothing_else() {
    run(|| async {
        let mut case = Revoked::new(11).await;
        let fra = case.fleet.relays[1];
        let flow = case.open().await;
        case.revoke().await;
        assert!(case.ends(flow).await < seconds(1), "the relay is connected");

        case.grant().await;
        let flow = case.open().await;
        case.fleet.crash(fra);
        tokio::time::sleep(seconds(1)).await;
        case.fleet.start(fra).await;
        case.revoke().await;
        assert!(case.ends(flow).await < seconds(1), "the relay was just restarted");
        case.fleet.settled().await;

        for away in [89, 91] {
            case.grant().await;
            let flow = case.open().await;
            case.fleet.cut_both(AMS, fra, true);
            tokio::time::sleep(seconds(1)).await;
            case.revoke().await;
            assert!(case.ends(flow).await < seconds(1), "the relay is cut off");
            tokio::time::sleep(seconds(away)).await;
            case.fleet.cut_both(AMS, fra, false);
            // What comes next must not wait for the relay's connection to the control node.
            case.grant().await;
            let flow = case.open().await;
            case.revoke().await;
            assert!(case.ends(flow).await < seconds(1), "it was cut off for {away} s");
        }

        let began = Instant::now();
        for _ in 0..3 {
            case.grant().await;
            let flow = case.open().await;
            case.revoke().await;
            assert!(case.ends(flow).await < seconds(1));
        }
        assert!(began.elapsed() < seconds(60));
        assert_eq!(case.fleet.status(case.fleet.web).flows.open, 1, "only the bystander is left");
    });
}

// RP-35: revocations are passed on by whoever has them: to a relay that is cut off from the control nodes by a node, and
// by that relay to a node that is cut off as well.
#[test]
fn rp35_revocations_reach_whoever_is_cut_off() {
    run(|| async {
        let mut case = Revoked::new(12).await;
        let (fra, web) = (case.fleet.relays[1], case.fleet.web);
        let flow = case.open().await;
        // The web server reaches the second relay only, and that one no control node.
        case.fleet.cut_both(AMS, fra, true);
        case.fleet.cut_both(AMS, web, true);
        tokio::time::sleep(seconds(10)).await;
        within("the first route goes on", seconds(1), case.bystander.echo()).await;
        case.revoke().await;
        let began = Instant::now();
        let took = case.ends(flow).await;
        assert!(took < seconds(1), "the target's end resets it: {took:?}");
        let knows = |fleet: &Fleet| fleet.service(fra).revocations.is_revoked(case.link, Generation(1));
        crate::support::until("the relay was told", seconds(15), || knows(&case.fleet)).await;
        assert!(began.elapsed() > seconds(1), "it gets a while to hear by itself");
        let told = || {
            let report = case.fleet.session(web, fra);
            report.revocations > Version(0)
        };
        crate::support::until("the cut-off node was told by the relay", seconds(3), told).await;
        // By its own snapshot the node still has the link; the target would refuse, and no relay admits.
        let fabric = case.fleet.node(web).fabric();
        assert!(fabric.link(case.link).is_some());
        case.fleet.world.fabric.heal();
        crate::support::until("its snapshot follows", seconds(40), || {
            case.fleet.node(web).fabric().link(case.link).is_none()
        })
        .await;
    });
}

// RP-35: what a relay has not applied is counted: pending at first, stale after 90 s, and nothing once it is back.
#[test]
fn rp35_pending_and_stale_revocations_are_counted() {
    run(|| async {
        let mut case = Revoked::new(13).await;
        let fra = case.fleet.relays[1];
        let counted = |case: &Revoked| {
            let relay = case.fleet.fleet_status().relays.list.into_iter().find(|relay| relay.name == "fra");
            let found = relay.and_then(|relay| relay.revocations).expect("the leader knows");
            (found.pending, found.stale)
        };
        case.fleet.crash(fra);
        case.revoke().await;
        tokio::time::sleep(seconds(12)).await;
        assert_eq!(counted(&case), (1, 0));
        let codes = |case: &Revoked| {
            let problems = case.fleet.fleet_status().problems;
            problems.into_iter().map(|problem| problem.code).collect::<Vec<_>>()
        };
        codes(&case);
        tokio::time::sleep(seconds(11)).await;
        assert!(codes(&case).iter().any(|code| code == "RELAY_REVOCATION_PENDING"));
        tokio::time::sleep(seconds(69)).await;
        assert_eq!(counted(&case), (0, 1));
        assert!(codes(&case).iter().any(|code| code == "RELAY_STALE"));
        case.fleet.start(fra).await;
        crate::support::until("it has applied everything", seconds(20), || counted(&case) == (0, 0)).await;
    });
}

// RP-35: after 90 s a relay that does not apply a revocation is asked for nothing of that link any more; other links go
// on through it. Here every relay is deaf; both ends end the flows all the same.
#[test]
fn rp35_a_stale_relay_is_no_candidate_for_the_revoked_routes() {
    run(|| async {
        let mut case = Revoked::new(14).await;
        let flow = case.open().await;
        postroad_cluster::planted::relays_are_deaf(true);
        let target_address = SocketAddr::new(case.fleet.world.machines[case.fleet.db].host.ip(), FAR + 1).to_string();
        case.fleet.world.propose(Action::LinkRetarget { link: case.link, target_address }).await.unwrap();
        assert!(case.ends(flow).await < seconds(1));
        let stale = |case: &Revoked| {
            let fleet = &case.fleet;
            let of = |node: usize, relay: &usize| fleet.node(node).fabric().is_stale(fleet.id(*relay), case.link);
            [fleet.web, fleet.db].map(|node| fleet.relays.iter().filter(|relay| of(node, relay)).count())
        };
        tokio::time::sleep(seconds(88)).await;
        assert_eq!(stale(&case), [0, 0]);
        // What relays owe the consumer are its tunnels: each waits there for a policy that does not come.
        let asked = |case: &Revoked| {
            let web = case.fleet.id(case.fleet.web);
            let owed = |relay: &usize| {
                let service = case.fleet.service(*relay);
                let session = service.sessions.get(&web).and_then(|number| service.connections.get(number));
                session.map_or(0, |session| session.owed)
            };
            case.fleet.relays.iter().map(owed).sum::<u32>()
        };
        let web = &case.fleet.world.machines[case.fleet.web];
        let (applications, address) = (web.applications.clone(), SocketAddr::new(web.host.ip(), NEAR));
        let early = applications.tcp_connect(address).await.unwrap();
        crate::support::until("relays are asked", seconds(1), || asked(&case) > 0).await;
        tokio::time::sleep(seconds(25)).await;
        assert_eq!((stale(&case), asked(&case)), ([2, 2], 0));
        let late = applications.tcp_connect(address).await.unwrap();
        for _ in 0..20 {
            tokio::time::sleep(ms(250)).await;
            assert_eq!(asked(&case), 0, "a stale relay is not even asked");
        }
        drop((early, late));
        // Whatever such a relay says to the target, it opens nothing of the link; what is open through it goes on.
        for relay in case.fleet.relays.clone() {
            assert_eq!(admission(&case, relay).await.as_deref(), Some(code::RELAY_STALE));
            within("an open flow goes on", seconds(1), case.bystander.echo()).await;
        }
        for _ in 0..3 {
            case.fleet.open().await.echo().await;
        }
        postroad_cluster::planted::relays_are_deaf(false);
    });
}

/// The code with which the target refuses a relay's word for a tunnel of the revoked link's new route.
async fn admission(case: &Revoked, relay: usize) -> Option<String> {
    let fleet = &case.fleet;
    let number = fleet.service(relay).sessions[&fleet.id(fleet.db)];
    let connection = fleet.node(relay).fabric().connections().get(number).expect("the target's session");
    let generation = fleet.node(fleet.db).fabric().link(case.link).expect("the new route").generation;
    let (tunnel, link, consumer) = (TunnelId(5), case.link, fleet.id(fleet.web));
    let word = RelayRequest::Admission { tunnel, link, generation, consumer };
    match connection.call::<RelayRequest, RelayResponse>(&word, CALL_WAIT).await {
        Ok(RelayResponse::Refused(refusal)) => Some(refusal.code),
        _ => None,
    }
}

// RP-31: a connection of the new route that is ahead of the target's snapshot is held, not refused.
#[test]
fn rp31_a_new_route_waits_for_its_target() {
    run(|| async {
        let mut case = Revoked::new(31).await;
        let (web, db) = (case.fleet.web, case.fleet.db);
        let flow = case.open().await;
        case.fleet.cut_both(AMS, db, true);
        let target_address = SocketAddr::new(case.fleet.world.machines[db].host.ip(), FAR + 1).to_string();
        let moved = listen(&case.fleet.world, db, FAR + 1);
        case.fleet.world.propose(Action::LinkRetarget { link: case.link, target_address }).await.unwrap();
        assert!(case.ends(flow).await < seconds(1), "the consumer's end is enough");
        tokio::time::sleep(ms(300)).await;
        let address = SocketAddr::new(case.fleet.world.machines[web].host.ip(), NEAR);
        let mut near = case.fleet.world.machines[web].applications.tcp_connect(address).await.unwrap();
        send(&mut *near.write, 9, 0, 8).await.unwrap();
        tokio::time::sleep(seconds(3)).await;
        case.fleet.cut_both(AMS, db, false);
        let mut far = within("it goes to the new target", seconds(6), moved.accept()).await.unwrap();
        assert_eq!(receive(&mut *far.read, 9, 0, 8).await, Ok(()));
    });
}

//! Every bound of the system and its reason: queues, buffers, retries and waits.

use crate::time::Span;

/// Socket buffers asked for on UDP sockets; the usual 212 KiB halves throughput and loses packets in bursts.
pub const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The largest message between two nodes. A snapshot of a fleet of 500 nodes and some thousand links stays under it.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The largest UDP payload over IPv4; a larger send fails.
pub const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;

/// Certificates in a chain: leaf, issuer, authority, and one to spare. A peer that sends more is refused unread.
pub const CERTIFICATE_CHAIN_MAX: usize = 4;

/// The largest certificate that is read. Ours stay under 1 KiB, whatever the names.
pub const CERTIFICATE_BYTES_MAX: usize = 4 << 10;

/// How long before its issue a certificate begins: clocks of a fleet may be apart by less than this.
pub const CERTIFICATE_EARLY: Span = Span::from_hours(1);

/// The life of a node's certificate: twice a pool member's grant, so that three days without control plane end no session.
pub const CERTIFICATE_LIFETIME: Span = Span::from_hours(192);

/// The life of an issuing key's certificate. Renewing it needs the offline authority, so it is rare; revocation ends it early.
pub const ISSUER_LIFETIME: Span = Span::from_hours(10 * 365 * 24);

/// The life of an authority. Longer than two issuers', so that replacing it by overlap never hurries.
pub const AUTHORITY_LIFETIME: Span = Span::from_hours(25 * 365 * 24);

/// The largest sealed authority file that is read; ours stay under 2 KiB.
pub const AUTHORITY_FILE_BYTES_MAX: usize = 16 << 10;

/// PBKDF2 rounds that seal an authority: about a second for the operator, as much for every guess of a thief.
pub const AUTHORITY_SEAL_ROUNDS: u32 = 1_000_000;

/// The most PBKDF2 rounds that are accepted from a file: more would hang the command that opens it.
pub const AUTHORITY_SEAL_ROUNDS_MAX: u32 = 20_000_000;

/// How long a flow waits when no relay can be reached, unless its node's configuration says otherwise (RP-1).
pub const FLOW_WAIT_DEFAULT_SECONDS: u64 = 60;

/// The longest such wait: a flow that waits longer than an hour holds its buffers for nothing.
pub const FLOW_WAIT_SECONDS_MAX: u64 = 3_600;

/// The largest configuration file. A full one has some 3 KiB; a larger one is another file given by mistake.
pub const CONFIG_BYTES_MAX: u64 = 256 << 10;

/// How many errors of a configuration are shown at once: more than a screen of them is one mistake repeated.
pub const CONFIG_ERRORS_MAX: usize = 20;

/// Restarts of one supervisor's children within [`SUPERVISION_WINDOW`] before it fails upwards: what five restarts did
/// not mend, a sixth will not.
pub const SUPERVISION_RESTARTS_MAX: usize = 5;

/// The window in which restarts are counted, and the uptime after which a child's backoff starts anew.
pub const SUPERVISION_WINDOW: Span = Span::from_mins(1);

/// The least wait before a restart: a single failure is mended before anybody notices.
pub const SUPERVISION_BACKOFF_MIN: Span = Span::from_millis(100);

/// The longest wait before a restart: longer would be an outage by itself.
pub const SUPERVISION_BACKOFF_MAX: Span = Span::from_secs(10);

/// How long a killed actor may take to be gone. Killing takes microseconds, unless a turn does not return.
pub const SUPERVISION_KILL_WITHIN: Span = Span::from_secs(1);

/// How long an actor may take to stop before it is killed. Stops are turns, not I/O.
pub const ACTOR_STOP_WITHIN: Span = Span::from_secs(5);

/// How long a supervisor may take to stop all its children one by one.
pub const SUPERVISOR_STOP_WITHIN: Span = Span::from_mins(1);

/// Children of one supervisor: all sessions or links of one node, with room.
pub const SUPERVISOR_CHILDREN_MAX: usize = 16_384;

/// Requests that wait in one mailbox before the next is refused as busy: about a second's work of a slow behavior.
pub const MAILBOX_REQUESTS_MAX: usize = 1_024;

/// States with different keys that wait in one mailbox: one for each of some thousand nodes, links or sessions.
pub const MAILBOX_STATES_MAX: usize = 4_096;

/// Timers, exits and results that wait in one mailbox. They are bounded by what the actor itself asked for, so more is a
/// defect, and the actor is failed.
pub const MAILBOX_RESERVED_MAX: usize = 8_192;

/// Events that an actor takes in one go, before it looks for a stop or a kill and others get their turn.
pub const MAILBOX_BATCH: usize = 32;

/// Tasks that one actor has under way: an actor that awaits more results than this has lost count.
pub const ACTOR_TASKS_MAX: usize = 1_024;

/// Timers that one actor has set, by key.
pub const ACTOR_TIMERS_MAX: usize = 4_096;

/// Askers from outside that wait for one actor.
pub const ACTOR_ASKS_MAX: usize = 256;

/// Events that an actor's journal keeps; enough to see what led to a failure.
pub const JOURNAL_ENTRIES_MAX: usize = 256;

/// Events between two checkpoints of a journal: a replay takes at most so many turns.
pub const JOURNAL_CHECKPOINT_EVERY: usize = 64;

/// Bytes of events and effects in one journal: 10,000 sessions' journals stay under 1 GiB. Checkpoints come on top, at
/// most [`JOURNAL_ENTRIES_MAX`] / [`JOURNAL_CHECKPOINT_EVERY`].
pub const JOURNAL_BYTES_MAX: usize = 64 << 10;

/// How old a published state may be while the actor has newer: people do not see less, and copies cost.
pub const PUBLISH_EVERY: Span = Span::from_millis(100);

/// Restarts that are remembered for each actor.
pub const RESTART_HISTORY_MAX: usize = 16;

/// Bytes of the state before a failure that are kept as text with the restart; the journal has the whole.
pub const RESTART_STATE_BYTES_MAX: usize = 16 << 10;

/// Failed actors that will not come back whose state and journal stay readable.
pub const POST_MORTEMS_MAX: usize = 64;

/// What may wait for the disk: operations of one database. A disk that syncs in 10 ms takes them in one commit.
pub const STORE_QUEUE_OPERATIONS: usize = 8_192;

/// What may wait for the disk: bytes of one database, kept in memory until they are synced.
pub const STORE_QUEUE_BYTES: usize = 32 << 20;

/// A commit that takes longer is a failed disk. Cloud disks stall for seconds, and more than the longest election
/// helps nobody.
pub const STORE_WAIT: Span = Span::from_secs(30);

/// The log's page cache: followers that lag read from it.
pub const STORE_LOG_CACHE_BYTES: usize = 32 << 20;

/// The page cache of the state and node databases, which are read at the start and rarely after.
pub const STORE_CACHE_BYTES: usize = 8 << 20;

/// A chunk of a stored snapshot: under 1 MiB by a page, so that redb, whose pages are powers of two, wastes none.
pub const STORE_CHUNK_BYTES: usize = (1 << 20) - 4_096;

/// The largest stored snapshot with its meta; 16 messages.
pub const STORE_SNAPSHOT_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;

/// The largest key in a node's own tables: names and numbers.
pub const STORE_KEY_BYTES_MAX: usize = 1_024;

/// The largest value in a node's own tables: an accepted snapshot, which came as a message.
pub const STORE_VALUE_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// How far the wall clock may go from the boot clock before a control node has to confirm it.
pub const TIME_JUMP_MAX: Span = Span::from_mins(5);

/// A circuit's QUIC packet where nothing larger is proven: 1,500 bytes of Ethernet less 40 of IPv6, 8 of UDP and 16 of
/// our header. IPv4 would carry 20 more, but a path may change its family.
pub const CIRCUIT_PACKET_BYTES: u32 = 1_436;

/// A circuit's QUIC packet on networks with frames of 9,000 bytes, used where every candidate's probe has carried it.
pub const CIRCUIT_PACKET_BYTES_JUMBO: u32 = 8_936;

/// How often a circuit's driver may go on at once when it has more to send: quinn sends up to 20 datagrams a turn, and 44
/// full ones fit the largest send.
pub const DRIVER_TURNS: usize = 3;

/// How long a removed circuit may still send: its connection's last word, which leaves when everybody else has run.
pub const CIRCUIT_LINGER: Span = Span::from_millis(100);

/// The tick of a circuit's failover while data is in flight: a tenth of the shortest silence that counts.
pub const CIRCUIT_TICK: Span = Span::from_millis(5);

/// The shortest silence that makes a relay suspect. QUIC delays acknowledgements by up to 25 ms, so that less flaps.
pub const CIRCUIT_SILENCE_MIN: Span = Span::from_millis(50);

/// A relay is suspect after this many round trips of silence: 1.5 flaps, more only prolongs the stall.
pub const CIRCUIT_SILENCE_ROUND_TRIPS: u32 = 3;

/// The round trip assumed while none is measured.
pub const CIRCUIT_ROUND_TRIP_UNKNOWN: Span = Span::from_millis(100);

/// Probes that must have stayed unanswered over a silent relay before it is left, at least. Where every hundredth packet is
/// lost on each of two ways there and two back, so many get lost together once in 400,000 silences, which are some hours of
/// busy flows; a relay whose probes are known to get lost is asked more often.
pub const CIRCUIT_CHECKS_NEEDED: u8 = 4;

/// The most of them, where a tenth and more gets lost: every further one prolongs the stall after a real death.
pub const CIRCUIT_CHECKS_MOST: u8 = 8;

/// Of a billion silences, how many may accuse a relay by chance: lost probes are asked again until it is less than that.
pub const CIRCUIT_FALSE_SUSPICIONS: u64 = 10;

/// Probes over one relay in one silence, whatever it lasts.
pub const CIRCUIT_CHECKS_MAX: u8 = 32;

/// Other relays that are asked during a silence whether they could take over: more than one, since one may be dead too.
pub const CIRCUIT_CHECKED_OTHERS: usize = 2;

/// Over how many probes the share of lost ones is smoothed: about a minute of them.
pub const PROBE_LOSS_SAMPLES: u64 = 64;

/// How often a silence may be doubled that probes contradict: probes come back while acknowledgements do not.
pub const CIRCUIT_PATIENCE_MAX: u32 = 8;

/// How often in a row probes may contradict a silence before the relay is left that carries them alone: about 0.8 s with a
/// short round trip, in which QUIC has sent the same data again at least three times.
pub const CIRCUIT_CONTRADICTIONS_MAX: u32 = 5;

/// Frames that must have been sent during such a silence, so that it is one: whatever is under way is sent again.
pub const CIRCUIT_SENT_AGAIN_MIN: u64 = 2;

/// How long a relay is a last resort that has carried probes and no data, the first time; every further time twice as
/// long. It may have been mended, and may as well be in bad hands.
pub const BETRAYAL_MIN: Span = Span::from_mins(1);

/// The longest time that a relay is a last resort for that: an hour hurts nobody who has others.
pub const BETRAYAL_MAX: Span = Span::from_hours(1);

/// A move without need waits at least this long after the last move.
pub const CIRCUIT_DWELL: Span = Span::from_secs(10);

/// The longest wait that lets packets of a slower way arrive before those of a faster one: half the difference of
/// round trips around the earth.
pub const CIRCUIT_HOLD_MAX: Span = Span::from_millis(250);

/// After a silence both relays get every packet, at most this long.
pub const CIRCUIT_DOUBLE_MAX: Span = Span::from_secs(1);

/// Channels of one circuit: more relays than a link's spread (8) and their replacements are never in use at once.
pub const CIRCUIT_CHANNELS_MAX: usize = 16;

/// Circuits of one node: 500 nodes with 8 circuits each, and some more.
pub const CIRCUITS_MAX: usize = 4_096;

/// A nearer relay must be nearer by this part of the present round trip, in percent (RP-12).
pub const NEARER_PERCENT: u32 = 30;

/// A nearer relay must be nearer by this much too (RP-12).
pub const NEARER_SPAN: Span = Span::from_millis(5);

/// Probes go over every channel this often.
pub const PROBE_INTERVAL: Span = Span::from_secs(1);

/// Quick probes on a channel that is new or has missed one.
pub const PROBE_BURST: u8 = 5;

/// The distance between quick probes.
pub const PROBE_BURST_INTERVAL: Span = Span::from_millis(100);

/// A probe is missing after three round trips, and not before this.
pub const PROBE_PATIENCE: Span = Span::from_millis(100);

/// A probe is missing after this while the round trip is unknown.
pub const PROBE_PATIENCE_UNKNOWN: Span = Span::from_secs(1);

/// What was proven longer ago than this is not believed: three rounds.
pub const PROBE_FRESH: Span = Span::from_secs(3);

/// Rounds of probes remembered to compare two relays by figures of the same moments.
pub const PROBE_ROUNDS_KEPT: usize = 16;

/// Rounds in which both relays answered that a comparison needs; the middle figure of each counts.
pub const PROBE_PAIRS: usize = 7;

/// The circuit's relay is given up after this many missing probes in a row, about 1.6 s after it died on an idle circuit.
pub const PROBE_MISSES_MAX: u32 = 5;

/// A larger packet size is probed for every this many rounds.
pub const PROBE_LARGER_ROUNDS: u64 = 30;

/// The size of probes where the circuit's own never comes back: what every QUIC path carries.
pub const PROBE_SMALL_BYTES: u32 = 1_200;

/// A relay is too small for a circuit's packets after this many probes of full size went missing beside small ones that
/// came back; one or two may just be lost.
pub const PROBE_FULL_MISSES: u8 = 3;

/// Probes of a peer answered over one channel in a second; its own rounds and bursts stay under it.
pub const PROBE_ANSWERS_PER_SECOND: u32 = 400;

/// Claims of a newer path checked in a second and circuit: each costs an HMAC, and a guess has 32 bits to hit.
pub const PATH_CHECKS_PER_SECOND: u32 = 1_000;

/// Datagrams that a circuit's ring keeps whatever their age.
pub const RING_DATAGRAMS_MIN: usize = 64;

/// Bytes that a circuit's ring keeps at most: what 1 Gbit/s sends in 60 ms of silence.
pub const RING_BYTES_MAX: usize = 8 << 20;

/// How long a circuit's ring keeps datagrams beyond four round trips.
pub const RING_AGE: Span = Span::from_millis(200);

/// Datagrams sent again in a millisecond, at least: about 190 Mbit/s, a burst that every network takes.
pub const RESEND_DATAGRAMS_PER_MS: usize = 16;

/// Datagrams that wait inside a node's socket since one received buffer mixed circuits.
pub const SOCKET_QUEUE_DATAGRAMS: usize = 1_024;

/// Events of circuits that wait for the actors.
pub const CIRCUIT_EVENTS: usize = 1_024;

/// How long a socket rests after an error of the network, so that a failing one does not spin.
pub const SOCKET_RETRY: Span = Span::from_millis(10);

/// Open application streams of one circuit.
pub const FLOWS_PER_CIRCUIT: u32 = 20_000;

/// Bytes that one flow may have under way: 100 ms of round trip at 320 Mbit/s.
pub const FLOW_WINDOW_BYTES: u32 = 4 << 20;

/// Bytes that one circuit may have sent and not yet acknowledged, over all its flows.
pub const CIRCUIT_SEND_WINDOW_BYTES: u64 = 16 << 20;

/// The first congestion window of a circuit and after each move: some 45 packets, what large sites send at once.
pub const CIRCUIT_FIRST_WINDOW_BYTES: u64 = 64 << 10;

/// A circuit says something this often, so that its idle limit never ends a living one.
pub const CIRCUIT_KEEPALIVE: Span = Span::from_secs(15);

/// A circuit's idle limit beyond the wait of its flows.
pub const CIRCUIT_IDLE_EXTRA: Span = Span::from_secs(30);

/// QUIC bytes that wait between a relay's switch and its endpoint.
pub const SWITCH_QUEUE_BYTES: usize = 4 << 20;

/// QUIC buffers that wait between a relay's switch and its endpoint.
pub const SWITCH_QUEUE_BUFFERS: usize = 4_096;

/// An address or session that was replaced stays valid this long for packets under way.
pub const SWITCH_LINGER: Span = Span::from_secs(5);

/// The least time between two challenges to new addresses of one session: 16 bytes each, so that nobody is flooded by
/// them, and a node whose address has changed is back within a second.
pub const CHALLENGE_INTERVAL: Span = Span::from_millis(500);

/// How long a challenge may be named.
pub const CHALLENGE_WAIT: Span = Span::from_secs(5);

/// Challenges in a second that a node answers: its relays send two each at the most, so that more are somebody else's.
pub const CHALLENGE_ANSWERS_PER_SECOND: u32 = 32;

/// Channels of one session at a relay.
pub const SESSION_CHANNELS_MAX: usize = 4_096;

/// Bytes a second that one channel, and one session, may send through a relay: 10 Gbit/s.
pub const CHANNEL_BYTES_PER_SECOND: u64 = 1_250_000_000;

/// Bytes that a channel may send at once beyond its rate.
pub const CHANNEL_BURST_BYTES: u64 = 32 << 20;

/// Bytes that one read of a flow's socket takes at most; the buffer exists only while there is something to read.
pub const FLOW_READ_BYTES: usize = 64 << 10;

/// Reads smaller than this are copied, so that a small message does not hold a large buffer until it is acknowledged.
pub const FLOW_COPY_BYTES: usize = 16 << 10;

/// Grants that a node remembers to have checked, about 1 MiB of them: then it begins anew.
pub const GRANTS_REMEMBERED_MAX: usize = 4_096;

/// The length of a message of a link's trial: that of a small request.
pub const TRIAL_MESSAGE_BYTES: usize = 100;

/// Messages of one trial: figures of more are no better.
pub const TRIAL_MESSAGES_MAX: usize = 200_000;

/// How long one part of a trial may take: long enough to be believed, short enough for whoever shares the way.
pub const TRIAL_SPAN_MAX: Span = Span::from_secs(30);

/// How long a trial drops a relay's packets: every failover has happened, and the session, which is given up after 3 s,
/// has not.
pub const TRIAL_DEAF: Span = Span::from_millis(2_500);

/// Chunks that a flow writes to its socket in one call.
pub const FLOW_CHUNKS: usize = 32;

/// Nodes of a cluster. With the bounds below, the whole state in its longest form stays under one message.
pub const NODES_MAX: usize = 4_000;

/// Control nodes: every one sees every entry of the log, and no cluster gets safer beyond 7.
pub const CONTROLS_MAX: usize = 15;

/// Links of a cluster; see [`NODES_MAX`].
pub const LINKS_MAX: usize = 4_000;

/// Consumers of all links together; see [`NODES_MAX`].
pub const LINK_CONSUMERS_MAX: usize = 40_000;

/// Tokens that wait for their joiner: more are made by mistake, and each is a way in.
pub const TOKENS_OPEN_MAX: usize = 1_000;

/// Tokens that are remembered, used and ended ones too, so that a joiner hears why it is refused; then the oldest go.
pub const TOKENS_REMEMBERED_MAX: usize = 2_000;

/// How long a token may wait for its joiner: a forgotten one is a way in.
pub const TOKEN_LIFETIME_MAX: Span = Span::from_hours(7 * 24);

/// Lines of the audit in the state; older ones are in the logs.
pub const AUDIT_LINES_MAX: usize = 1_000;

/// Lines of the audit by one node that is no control node: what its operator did there, and too few to push out others'.
pub const AUDIT_LINES_OF_A_NODE_MAX: usize = 20;

/// Removed nodes that are remembered; certificates end by themselves long before so many nodes were removed.
pub const REVOKED_NODES_MAX: usize = 10_000;

/// A DNS name's 253 bytes, a colon and a port.
pub const ADDRESS_BYTES_MAX: usize = 259;

/// A reason for people that enters the log.
pub const REASON_BYTES_MAX: usize = 200;

/// An Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

/// How often each end of a session proves that it is alive (RP-33).
pub const SESSION_PING_INTERVAL: Span = Span::from_secs(1);

/// The first wait before a relay is dialled again: one that restarted listens within a fraction of a second.
pub const SESSION_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait (RP-54): a relay that is back is used within it.
pub const SESSION_RETRY_MAX: Span = Span::from_secs(15);

/// The first wait before a refused registration is tried again (RP-32: 0.2 to 0.4 s).
pub const REGISTER_RETRY_MIN: Span = Span::from_millis(400);

/// The longest such wait.
pub const REGISTER_RETRY_MAX: Span = Span::from_secs(15);

/// The first wait before a channel is asked for again that a relay refused: the peer's session is usually a moment late.
pub const CHANNEL_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait; a channel that is missing is a lost spare, and a peer that restarts is to be met again well
/// within what its consumers hold (RP-34).
pub const CHANNEL_RETRY_MAX: Span = Span::from_secs(2);

/// The first wait before a circuit or a control node is dialled again.
pub const DIAL_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait.
pub const DIAL_RETRY_MAX: Span = Span::from_secs(10);

/// Relays that one node holds sessions with; more spares than this cost pings and buy nothing.
pub const SESSIONS_MAX: usize = 16;

/// Circuits of a pair at one time: the one in use, and the one that a restarted dialler opens in its place.
pub const CIRCUITS_OF_A_PAIR_MAX: usize = 2;

/// Control nodes that a node is connected to.
pub const CONTROL_CONNECTIONS: usize = 2;

/// How often a node reports its facts.
pub const REPORT_INTERVAL: Span = Span::from_secs(5);

/// How often it does while a relay drains: people watch how far that is.
pub const REPORT_INTERVAL_DRAINING: Span = Span::from_millis(400);

/// A node that has not reported for this long is not there: three reports in a row are missing.
pub const REPORT_STALE: Span = Span::from_secs(15);

/// Circuits that a node reports one by one; more are only counted, so that a report stays small.
pub const REPORT_CIRCUITS_MAX: usize = 256;

/// Links with revoked routes that are remembered, the newest; each is some 30 bytes of every snapshot.
pub const REVOCATIONS_MAX: usize = 5_000;

/// How long a revocation is remembered: the longest grant and the longest policy lease, one after the other.
pub const REVOCATION_KEPT: Span = Span::from_hours(224 + 168);

/// A relay that has not applied a revocation for this long is stale for its routes (RP-35).
pub const REVOKED_WITHIN: Span = Span::from_secs(90);

/// A node leaves a relay this long to hear of revocations by itself before it passes them on.
pub const PASS_ON_MIN: Span = Span::from_secs(2);

/// Over how long nodes spread the passing on, so that the first one's is enough for the others.
pub const PASS_ON_SPREAD: Span = Span::from_secs(8);

/// How long what cannot move may go on over a draining relay (RP-40).
pub const DRAIN_WAIT: Span = Span::from_mins(10);

/// How often the leader renews every lease.
pub const LEASE_RENEW_INTERVAL: Span = Span::from_mins(1);

/// How often a consumer tries again to listen on an address that it could not bind.
pub const LISTEN_RETRY: Span = Span::from_secs(5);

/// How long a control node may hold a question for the next snapshot before it answers that there is none.
pub const SNAPSHOT_POLL: Span = Span::from_secs(20);

/// The largest command that is proposed. An entry travels and is stored as a whole; real commands stay under 20 KiB.
pub const RAFT_COMMAND_BYTES_MAX: usize = 512 << 10;

/// Entries sent in one message, in bytes (one entry is sent whatever its size): a follower far behind catches up in
/// messages that a slow way carries within an election's time.
pub const RAFT_APPEND_BYTES_MAX: usize = 1 << 20;

/// Entries sent in one message.
pub const RAFT_APPEND_ENTRIES_MAX: u64 = 256;

/// One chunk of a state snapshot on its way to a member.
pub const RAFT_CHUNK_BYTES: usize = 1 << 20;

/// The largest state snapshot: it is decoded as one message, and a member reassembles one at a time in memory.
pub const RAFT_SNAPSHOT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// How long one chunk may take there and back; installing is part of the last one.
pub const RAFT_CHUNK_WAIT: Span = Span::from_secs(10);

/// Chunks that may be sent again in one transfer before it starts anew.
pub const RAFT_CHUNK_RETRIES: u32 = 8;

/// How long a proposal waits for its outcome before it is said to be unknown.
pub const RAFT_PROPOSE_WAIT: Span = Span::from_secs(10);

/// Proposals that wait for their outcome; past it they are refused at once.
pub const RAFT_PROPOSALS_MAX: usize = 1_024;

/// How long a read waits until everything acknowledged before it is applied here.
pub const RAFT_READ_WAIT: Span = Span::from_secs(5);

/// How long a change of the members waits to be committed before its outcome is said to be unknown.
pub const RAFT_CHANGE_WAIT: Span = Span::from_secs(15);

/// Entries that a learner may be behind when it becomes a voter: more would hold up every decision meanwhile.
pub const RAFT_PROMOTE_LAG_MAX: u64 = 64;

/// Voters of the control plane: past 7 every decision waits for more disks without surviving more that matters.
pub const CONTROL_VOTERS_MAX: usize = 7;

/// Entries after which a state snapshot is made, and the log before it can go.
pub const RAFT_SNAPSHOT_ENTRIES: u64 = 4_096;

/// Entries kept behind a snapshot, so that a member back from a restart needs no whole snapshot.
pub const RAFT_KEEP_ENTRIES: u64 = 1_024;

/// Messages and calls that wait for the Raft group's task.
pub const RAFT_QUEUE_MAX: u64 = 1_024;

/// Terms and indexes above this are refused: nobody gets there by elections, and the next one must still exist.
pub const RAFT_NUMBER_MAX: u64 = 1 << 62;

/// Requests that one end of a connection may have open, and that the other answers at a time; a peer with more is stuck.
pub const CALLS_PER_PEER_MAX: usize = 64;

/// Bytes of a peer's requests that are held at a time: two of the largest messages, whatever their number.
pub const CALL_BYTES_PER_PEER_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// The longest that a request may wait for its answer at the peer, whatever its caller says.
pub const CALL_WAIT_MAX: Span = Span::from_mins(1);

/// How long a housekeeping message may take to arrive whole. Longer than a circuit waits for a path, since a stall is no
/// offence.
pub const HOUSEKEEPING_WAIT: Span = Span::from_mins(3);

/// Handshakes that an endpoint has half open; further ones are ignored, which costs nothing but their retry.
pub const HANDSHAKES_MAX: usize = 1_000;

/// Half-open handshakes past which a peer must first show that it receives at its address (QUIC Retry).
pub const HANDSHAKES_RETRY: usize = 100;

/// How long a handshake may take, at either end.
pub const HANDSHAKE_WAIT: Span = Span::from_secs(5);

/// Connections that wait to be taken from an endpoint; past it handshakes wait within [`HANDSHAKE_WAIT`].
pub const ACCEPT_QUEUE_MAX: usize = 64;

/// Stateless resets that an endpoint sends in a second: a restarted relay wakes all its peers in about that time.
pub const RESETS_PER_SECOND: u64 = 1_000;

/// Stateless resets that it sends at once.
pub const RESETS_BURST: u64 = 2_000;

/// How long a joiner tries one seed before the next.
pub const JOIN_SEED_WAIT: Span = Span::from_secs(3);

/// Seeds that a joiner tries.
pub const JOIN_SEEDS_MAX: usize = 16;

/// How long the answer to a join may take: a proposal's wait and its way through the leader.
pub const JOIN_ANSWER_WAIT: Span = Span::from_secs(15);

/// Connections that a relay keeps; each costs it some 60 KiB, so this many stay under 1 GiB.
pub const RELAY_SESSIONS_MAX: usize = 10_000;

/// Connections of one node at a relay, old and new together: a node that restarts often leaves some behind until they
/// fall silent.
pub const RELAY_CONNECTIONS_PER_NODE_MAX: usize = 8;

/// Endpoints that one node registers at a relay: as many as a cluster has links, and some.
pub const REGISTRATIONS_PER_SESSION_MAX: usize = 4_096;

/// Channels of one pair of nodes at a relay: 8 circuits, and room for those that come while others go.
pub const CHANNELS_PER_PAIR_MAX: usize = 64;

/// Requests for one and the same channel that wait for its peer; two ends ask at once at most, and a repeat of each.
pub const CHANNEL_WAITERS_MAX: usize = 4;

/// Requests that wait at a relay for a policy or a registration; more would only hide that none comes.
pub const RELAY_WAITING_MAX: usize = 1_024;

/// Requests to nodes that a relay awaits the answers of.
pub const RELAY_ASKS_MAX: usize = 8_192;

/// Requests of one session that a relay has not answered yet, so that one node cannot take the room of all.
pub const RELAY_OWED_PER_SESSION_MAX: u32 = 256;

/// How long a grant, or a node, waits for the policy that covers it (RP-32).
pub const POLICY_WAIT: Span = Span::from_secs(10);

/// How long a tunnel waits for its endpoint to be registered: longer than a reconnect takes, and short enough that
/// another relay is asked within 2 s.
pub const ENDPOINT_WAIT: Span = Span::from_secs(1);

/// How long the registrations of a node stay that said goodbye (RP-34).
pub const RESTART_KEPT: Span = Span::from_secs(15);

/// After how much silence a relay drops a session (RP-33).
pub const SESSION_SILENCE_MAX: Span = Span::from_millis(3_500);

/// How often a relay looks at its sessions and at what waits: all its waits are as much too long at most.
pub const RELAY_SWEEP_INTERVAL: Span = Span::from_millis(250);

/// Relays' words for tunnels whose streams have not come: all tunnels of a circuit that wait, times some peers.
pub const VOUCHERS_MAX: usize = 8_192;

/// Streams of one circuit that wait for a relay's word; more are reset, since each holds a window of unread bytes.
pub const TUNNELS_WAITING_MAX: usize = 64;

/// How long a stream waits for its first frame and for a relay's word.
pub const TUNNEL_WAIT: Span = Span::from_secs(10);

/// How long one relay may take to admit a tunnel before the next is asked.
pub const ADMIT_WAIT: Span = Span::from_secs(2);

/// The pause between two rounds over all relays for one tunnel.
pub const ADMIT_PAUSE: Span = Span::from_millis(250);

/// The largest first frame of a stream: a grant and four numbers.
pub const OPEN_FRAME_BYTES_MAX: usize = 4 << 10;

/// How long a target may take to accept a connection.
pub const TARGET_CONNECT_WAIT: Span = Span::from_secs(10);

/// Flows of one node; each holds a task and two sockets.
pub const FLOWS_MAX: usize = 100_000;

/// How long a request to a relay or control node may take before its connection is in doubt.
pub const CALL_WAIT: Span = Span::from_secs(3);

/// How long a dial may take with resolving the name.
pub const DIAL_WAIT: Span = Span::from_secs(8);

/// How long a command waits for a leader: an election takes a few seconds, and its answer must come before a joiner's
/// patience ends.
pub const ELECTION_WAIT: Span = Span::from_secs(8);

/// Bytes that one read of a spliced path copies at most: what databases send in one write, and what a path may hold for
/// a peer that takes nothing.
pub const SPLICE_COPY_BYTES: usize = 16 << 10;

/// Reads in a row that fill that buffer before bytes go through a pipe: less would take pipes for single large rows.
pub const SPLICE_BULK_READS: u8 = 2;

/// Bytes that a pipe is filled with at once: past 256 KiB the processor's cache is left, and no call is saved.
pub const SPLICE_PIPE_BYTES: usize = 256 << 10;

/// Pipes of one process: as many bulk transfers go through the kernel at once, the others are copied. With 64 pages each
/// they stay under the 16,384 pages that Linux grants a user.
pub const SPLICE_PIPES_MAX: usize = 64;

/// Bytes that one direction of a path moves before the other paths of its thread have their turn, well under 1 ms.
pub const SPLICE_TURN_BYTES: u64 = 1 << 20;

/// How long a connection may stay silent whose other side has ended (DB-33): longer than a database's longest query
/// without a byte would be, and a forgotten one is gone within the hour.
pub const SPLICE_SILENT_WAIT: Span = Span::from_mins(30);

/// How long a peer's host may leave bytes unanswered: some seven retransmissions, where Linux would try for 15 minutes.
pub const SPLICE_UNANSWERED_WAIT: Span = Span::from_secs(30);

/// The least and the longest distance between two looks at paths that may have to be given up.
pub const SPLICE_LOOK_MIN: Span = Span::from_millis(10);
/// See [`SPLICE_LOOK_MIN`].
pub const SPLICE_LOOK_MAX: Span = Span::from_secs(5);

/// The longest PROXY header: its fixed part, and what a length of 16 bits can say.
pub const PROXY_HEADER_BYTES_MAX: usize = 16 + u16::MAX as usize;

/// The addresses of a PROXY header for Unix sockets, which are skipped.
pub const PROXY_HEADER_UNIX_BYTES: usize = 216;

/// How long a trusted address may take to send its PROXY header; it sends it at once, so a second is for a lost packet.
pub const PROXY_HEADER_WAIT: Span = Span::from_secs(3);

/// Addresses and networks from which PROXY headers are read; each is compared for every connection.
pub const PROXY_SOURCES_MAX: usize = 64;

/// The longest startup message of a PostgreSQL client; the server's own bound.
pub const STARTUP_BYTES_MAX: usize = 10_000;

/// How long a client may take to be refused: its startup message, and its end after it has read the error.
pub const REFUSAL_WAIT: Span = Span::from_secs(5);

/// Bytes of a PROXY header read at once: usual ones have 28 to 52.
pub const PROXY_HEADER_READ_BYTES: usize = 256;

/// How long a node may take to show a page of its console to another. Pages are made within milliseconds, and whoever
/// looks at a fleet must not wait for its dead.
pub const LOOK_WAIT: Span = Span::from_secs(1);

/// Looks at other nodes that are under way at one control node: a few browsers with a fleet of some tens.
pub const LOOKS_MAX: usize = 32;

/// Entries of the log whose traces a control node remembers, for the snapshots that they lead to: those are fetched within
/// seconds, by nodes that are there.
pub const TRACED_ENTRIES_MAX: usize = 256;

/// Steps of traces that a node remembers beside its journals: turns of what somebody has begun, and what was done outside of
/// actors, such as requests of the API; some minutes of a busy operator. So many of each.
pub const TRACE_STEPS_MAX: usize = 1_024;

/// Steps of one trace that a node tells of: what is longer is a storm, whose beginning says what it is.
pub const TRACE_SHOWN_MAX: usize = 500;

/// Circuits that one rebalancing moves: what is left is planned anew from what came of it.
pub const REBALANCE_MOVES_MAX: usize = 32;

/// How long a node may take to do what another's console asked of it.
pub const ACT_WAIT: Span = Span::from_secs(3);

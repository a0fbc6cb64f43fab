//! Cases from the field, each on whole nodes in virtual time, named as the list of cases names them (R1, R2, …).

#[path = "cases/admission.rs"]
mod admission;
#[path = "cases/balancer.rs"]
mod balancer;
#[path = "cases/circuits.rs"]
mod circuits;
#[path = "cases/control.rs"]
mod control;
#[path = "cases/drain.rs"]
mod drain;
#[path = "cases/flows.rs"]
mod flows;
#[path = "cases/hostile.rs"]
mod hostile;
#[path = "cases/hostile_relay.rs"]
mod hostile_relay;
#[path = "cases/packet_size.rs"]
mod packet_size;
#[path = "cases/relays.rs"]
mod relays;
#[path = "cases/revocation.rs"]
mod revocation;
#[path = "cases/sessions.rs"]
mod sessions;
#[path = "cases/support.rs"]
mod support;
#[path = "cases/trace.rs"]
mod trace;
#[path = "cases/trust.rs"]
mod trust;

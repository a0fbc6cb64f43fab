//! The demonstration's drain: the relay in use goes out of service under load and comes back.

use std::time::{Duration, Instant};

use super::{
    fleet::Fleet,
    observe::Seen,
    report::{Drained, milliseconds},
    setup::CONSUMER,
    show::{READY_WITHIN, watch},
    story::Story,
    traffic::Traffic,
};
use crate::errors::Failure;

/// The control node that is asked.
const ASKED: &str = "control-1";

/// Traffic after the drain, so that a late gap counts too.
const AFTER: Duration = Duration::from_millis(500);

/// Drains the relay that carries the flows, and resumes it.
///
/// # Errors
/// If a command fails, a flow breaks or a node ends.
pub(super) async fn drain(fleet: &mut Fleet, story: &Story, traffic: &Traffic) -> Result<Drained, Failure> {
    let what = "a relay carries the flows, and another could";
    let carried = |seen: &Seen| seen.in_use().is_some() && seen.has_spares();
    let seen = fleet.until(CONSUMER, what, READY_WITHIN, carried).await?;
    let relay = seen.in_use().unwrap_or_default().to_owned();
    let flows = seen.flows_of(&relay);
    let style = story.style();
    story.say(format!("  {} {} is drained while it carries {flows} flows", style.warning("→"), style.heading(&relay)));
    traffic.begin_window();
    let began = Instant::now();
    fleet.step(ASKED, &["relay", "drain", &relay], None)?.run().await?;
    let took = began.elapsed();
    watch(fleet, traffic, AFTER).await?;
    let gap = traffic.window();
    let moved_to = fleet.look(CONSUMER).await?.in_use().map(str::to_owned);
    fleet.step(ASKED, &["relay", "resume", &relay], None)?.run().await?;
    story.say(format!(
        "  {} {} carries them on: longest gap {}, drained after {:.1} s; {relay} is back in service",
        style.good("✓"),
        style.heading(moved_to.as_deref().unwrap_or("another relay")),
        style.heading(format!("{} ms", milliseconds(gap))),
        took.as_secs_f64(),
    ));
    Ok(Drained { relay, flows, moved_to, gap, took })
}

//! What one actor went through on a real node, as the console saves it, played again turn by turn: the same events must
//! lead to the same effects.

use std::panic::{AssertUnwindSafe, catch_unwind};

use postroad_cluster::{
    behavior::{Behavior, Event as _},
    control::Control,
    leader::Leader,
    link::Link,
    node::Node,
    peer::Peer,
    recording::{Recorded, Recording, RecordingFile},
    relay::Relay,
    session::Session,
    supervision::Supervision,
    wire,
};

/// What playing a recording came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// A line for each turn and each of its effects.
    pub lines: Vec<String>,
    /// How many turns were played.
    pub turns: usize,
    /// The first turn that came out otherwise than it was recorded, and how.
    pub difference: Option<String>,
}

/// The recording in a file's text, if that is one at all.
#[must_use]
pub fn read(text: &str) -> Option<RecordingFile> {
    serde_json::from_str(text).ok()
}

/// Plays a recording.
///
/// # Errors
/// When the file is of another release or broken, or no behavior has its noun.
pub fn play(file: &RecordingFile) -> Result<Played, String> {
    if file.recording != RecordingFile::VERSION {
        return Err(format!(
            "the recording has version {}, this program reads {}",
            file.recording,
            RecordingFile::VERSION
        ));
    }
    let bytes = file.decoded().ok_or("the recording's bytes are no hexadecimal digits")?;
    match file.noun.as_str() {
        Control::NOUN => turns::<Control>(&bytes),
        Leader::NOUN => turns::<Leader>(&bytes),
        Link::NOUN => turns::<Link>(&bytes),
        Node::NOUN => turns::<Node>(&bytes),
        Peer::NOUN => turns::<Peer>(&bytes),
        Relay::NOUN => turns::<Relay>(&bytes),
        Session::NOUN => turns::<Session>(&bytes),
        Supervision::NOUN => turns::<Supervision>(&bytes),
        noun => Err(format!("no behavior is called {noun:?}; the recording is of another release")),
    }
}

fn turns<B: Behavior>(bytes: &[u8]) -> Result<Played, String> {
    let recording: Recording<B> = wire::decode(bytes).map_err(|error| error.to_string())?;
    let mut played = Played { lines: Vec::new(), turns: 0, difference: None };
    let look = |recorded: &Recorded<B>, _: &B, effects: &[B::Effect]| {
        played.turns += 1;
        let (at_ms, kind) = (recorded.turn.now.0 / 1_000_000, recorded.event.kind());
        let (number, sender, event) = (recorded.number, &recorded.sender, &recorded.event);
        played.lines.push(format!("{at_ms:>12} ms  #{number} {kind} from {sender}: {event:?}"));
        played.lines.extend(effects.iter().map(|effect| format!("{:>15}  -> {effect:?}", "")));
        if recorded.failure.is_some() {
            played.difference = Some(format!("event {number} failed then and does not fail now"));
        } else if effects != recorded.effects {
            let (then, now) = (&recorded.effects, effects);
            played.difference = Some(format!("event {number} had other effects\n  then {then:?}\n  now  {now:?}"));
        }
        played.difference.is_none()
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| recording.play(look)));
    if outcome.is_err() {
        // The turn that failed showed nothing, so it is the one after those that did.
        let failed = recording.turns.get(played.turns);
        let failure = failed.and_then(|turn| Some((turn.number, turn.failure.as_ref()?)));
        match failure {
            Some((number, error)) => played.lines.push(format!("event {number} fails as it was recorded: {error}")),
            None => played.difference = Some("a turn fails now that did not fail then".to_owned()),
        }
    }
    Ok(played)
}

#[cfg(test)]
mod tests {
    use postroad_cluster::{
        behavior::Turn,
        supervision::{Event, Restart, Rule, Strategy},
        time::{Moment, Span},
    };

    use super::*;

    fn recorded() -> Recording<Supervision> {
        let rule = Rule { restart: Restart::Permanent, strategy: Strategy::OneForOne, stop_within: Span::from_secs(1) };
        let base = Supervision::new(vec![("a".to_owned(), rule), ("b".to_owned(), rule)]);
        let events =
            [Event::Begin, Event::Started { id: "a".into(), run: 1 }, Event::Started { id: "b".into(), run: 2 }];
        let mut state = base.clone();
        let mut turns = Vec::new();
        for (at, event) in events.into_iter().enumerate() {
            let turn = Turn { now: Moment(at as u64), ..Turn::default() };
            let mut effects = Vec::new();
            state.on(turn, event.clone(), &mut effects);
            turns.push(Recorded { number: at as u64 + 1, turn, sender: "node".into(), event, effects, failure: None });
        }
        Recording { base, turns }
    }

    fn file(recording: &Recording<Supervision>) -> RecordingFile {
        RecordingFile {
            recording: RecordingFile::VERSION,
            noun: Supervision::NOUN.to_owned(),
            node: "fra".to_owned(),
            path: "node/links".to_owned(),
            first: 1,
            last: 3,
            bytes: RecordingFile::encoded(&wire::encode(recording)),
        }
    }

    #[test]
    fn a_recording_plays_as_it_was_and_a_change_is_found() {
        let good = recorded();
        let text = serde_json::to_string(&file(&good)).unwrap();
        let played = play(&read(&text).unwrap()).unwrap();
        assert_eq!((played.turns, played.difference), (3, None));
        assert!(played.lines.len() > 3, "effects are shown: {:?}", played.lines);
        let mut changed = good;
        changed.turns[0].effects.clear();
        let difference = play(&file(&changed)).unwrap().difference.unwrap();
        assert!(difference.starts_with("event 1 had other effects"), "{difference}");
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        assert_eq!(read("{}"), None);
        let good = file(&recorded());
        assert!(play(&RecordingFile { recording: 9, ..good.clone() }).unwrap_err().contains("version 9"));
        assert!(play(&RecordingFile { noun: "plumber".into(), ..good.clone() }).unwrap_err().contains("plumber"));
        assert!(play(&RecordingFile { bytes: "00".into(), ..good.clone() }).is_err());
        assert!(play(&RecordingFile { bytes: "x".into(), ..good }).is_err());
    }
}

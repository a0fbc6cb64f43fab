//! What clients send to a balancer that has to refuse them: the beginnings of PostgreSQL's protocol, and anything else.

use postroad_cluster::{
    balancer::{
        database::settings::{Language, Port, Protocol},
        refusal::{Refusal, Step},
    },
    limits::STARTUP_BYTES_MAX,
};

use crate::mutation::edited;

/// Answers that one client may get: two wishes for encryption are declined, and then it ends.
const STEPS_MAX: usize = 3;

fn refuse(protocol: Protocol, mut bytes: &[u8], size: usize) -> Vec<Step> {
    let mut refusal = Refusal::new(protocol, Port::Rw, Language::En);
    let mut steps = Vec::new();
    match refusal.begin() {
        Step::Read => {}
        step => steps.push(step),
    }
    while !bytes.is_empty() && refusal.wanted() > 0 {
        assert!(refusal.wanted() <= STARTUP_BYTES_MAX, "no message is read beyond its end");
        let (piece, rest) = bytes.split_at(refusal.wanted().min(size).min(bytes.len()));
        bytes = rest;
        match refusal.take(piece) {
            Step::Read => {}
            step => steps.push(step),
        }
    }
    let ended = matches!(steps.last(), Some(Step::End(_)));
    assert_eq!(ended, refusal.wanted() == 0, "it ends once, and reads nothing after");
    assert!(steps.len() <= STEPS_MAX, "{steps:?}");
    steps
}

/// Refuses the data, and edits of a good beginning; pieces of any size come to the same answers.
pub(crate) fn run(data: &[u8]) {
    let parameters = b"user\0alice\0database\0shop\0\0";
    let mut good = Vec::new();
    for code in [80_877_104_u32, 80_877_103] {
        good.extend([8_u32.to_be_bytes(), code.to_be_bytes()].concat());
    }
    good.extend((8 + parameters.len() as u32).to_be_bytes());
    good.extend(196_608_u32.to_be_bytes());
    good.extend(parameters);
    assert_eq!(refuse(Protocol::Postgres, &good, usize::MAX).len(), STEPS_MAX);
    let size = 1 + usize::from(data.first().copied().unwrap_or_default() % 20);
    for bytes in [data.to_vec(), edited(&good, data), [&good[..16], data].concat()] {
        assert_eq!(refuse(Protocol::Postgres, &bytes, usize::MAX), refuse(Protocol::Postgres, &bytes, size));
        assert_eq!(refuse(Protocol::Mysql, &bytes, size).len(), 1, "its server speaks first, and then ends");
    }
}

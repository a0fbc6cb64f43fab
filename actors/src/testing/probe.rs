//! A behavior and performer that do in tests whatever they are told, and shorthands around them.

use std::sync::Arc;

use postroad_cluster::{
    behavior::{Behavior, Class, Event, ReplyId, Turn},
    supervision::Restart,
    time::Span,
};
use serde::{Deserialize, Serialize};

use super::{TestClock, TestEntropy};
use crate::{
    directory::Context,
    handle::Handle,
    mailbox::Bounds,
    shell::Performer,
    supervisor::{ChildSpec, Root},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probe {
    pub(crate) log: Vec<String>,
    pub(crate) total: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Told {
    First,
    Add(u64),
    Load { key: u64, value: u64 },
    Ask(ReplyId),
    AskNever(ReplyId),
    Do(Vec<Effect>),
    Timer(u64),
    Result(u64),
    Boom,
    Bye,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Effect {
    Reply { id: ReplyId, value: u64 },
    After { ms: u64, key: u64, value: u64 },
    Cancel { key: u64 },
    Work { ms: u64, value: u64, within_ms: u64 },
    WorkForever,
    WorkThatPanics,
    SendSelf { times: u64 },
    Tell { path: String, value: u64 },
    Crash,
    Panic,
    Stop,
    Draw,
}

impl Event for Told {
    fn kind(&self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Add(_) => "add",
            Self::Load { .. } => "load",
            Self::Ask(_) | Self::AskNever(_) => "ask",
            Self::Do(_) => "do",
            Self::Timer(_) => "timer",
            Self::Result(_) => "result",
            Self::Boom => "boom",
            Self::Bye => "bye",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Load { key, .. } => Class::State { key: *key },
            Self::First | Self::Timer(_) | Self::Result(_) | Self::Bye => Class::Reserved,
            _ => Class::Request,
        }
    }
}

impl Behavior for Probe {
    const NOUN: &'static str = "probe";
    type Event = Told;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Told, effects: &mut Vec<Effect>) {
        self.log.push(format!("{event:?}"));
        if self.log.len() > 50 {
            self.log.remove(0);
        }
        match event {
            Told::First | Told::AskNever(_) => {}
            Told::Add(value) | Told::Load { value, .. } | Told::Timer(value) | Told::Result(value) => {
                self.total += value;
            }
            Told::Ask(id) => effects.push(Effect::Reply { id, value: self.total }),
            Told::Do(asked) => {
                for effect in asked {
                    if effect == Effect::Draw {
                        self.total += turn.draw(1, 1_000);
                    }
                    effects.push(effect);
                }
            }
            Told::Boom => {
                // What a failing turn has changed must not be seen anywhere.
                self.total = u64::MAX;
                panic!("boom at {:?}", self.log.len());
            }
            Told::Bye => effects.push(Effect::Stop),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Doer {
    pub(crate) bounds: Bounds,
    /// Whether it says good-bye, and whether that ends it.
    pub(crate) stubborn: bool,
    /// Dropped with the incarnation.
    pub(crate) life: Option<Arc<()>>,
}

impl Performer<Probe> for Doer {
    type Reply = u64;

    fn perform(&mut self, effect: Effect, me: &Handle<Probe, u64>) {
        let span = Span::from_millis;
        match effect {
            Effect::Reply { id, value } => {
                me.reply(id, value);
            }
            Effect::After { ms, key, value } => me.after(me.now().after(span(ms)), key, Told::Timer(value)).unwrap(),
            Effect::Cancel { key } => me.cancel(key),
            Effect::Work { ms, value, within_ms } => {
                let sleep = me.clock().sleep_until(me.now().after(span(ms)));
                let work = async move {
                    sleep.await;
                    Told::Result(value)
                };
                me.run(span(within_ms), Told::Result(0), work).unwrap();
            }
            Effect::WorkForever => me.attend(std::future::pending()).unwrap(),
            Effect::WorkThatPanics => me.attend(async { panic!("in a task") }).unwrap(),
            Effect::SendSelf { times } => {
                for _ in 0..times {
                    let _ = me.send(Told::Result(1));
                }
            }
            Effect::Tell { path, value } => {
                let other = me.directory().and_then(|directory| directory.find::<Probe, u64>(&path));
                other.unwrap().send(Told::Add(value)).unwrap();
            }
            Effect::Crash => me.directory().unwrap().kill_all(),
            Effect::Panic => panic!("in an effect"),
            Effect::Stop if self.stubborn => {}
            Effect::Stop => me.stop(),
            Effect::Draw => {}
        }
    }

    fn first(&mut self, _: &Handle<Probe, u64>) -> Option<Told> {
        Some(Told::First)
    }

    fn farewell(&self) -> Option<Told> {
        self.stubborn.then_some(Told::Bye)
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn snapshot(&self) -> serde_json::Value {
        serde_json::json!({ "stubborn": self.stubborn, "held": self.life.is_some() })
    }
}

pub(crate) fn context(seed: u64) -> Context {
    Context::new(Arc::new(TestClock::default()), Arc::new(TestEntropy::new(seed)), "here")
}

/// A probe as a child.
pub(crate) fn probe(id: &str, restart: Restart) -> ChildSpec {
    ChildSpec::actor(id, restart, |_| Ok((Probe::default(), Doer::default())))
}

/// A tree with one probe at `node/p`.
pub(crate) async fn one(bounds: Bounds) -> (Root, Handle<Probe, u64>) {
    let make = move |_: &_| Ok((Probe::default(), Doer { bounds, ..Doer::default() }));
    let children = |_: &_| vec![ChildSpec::actor("p", Restart::Permanent, make)];
    let root = Root::start(context(1), "node", children, |_| {}).await.unwrap();
    rest().await;
    let handle = root.directory().find("node/p").unwrap();
    (root, handle)
}

/// Lets everybody do what can be done now: paused time moves only when all are idle.
pub(crate) async fn rest() {
    pass_ms(1).await;
}

pub(crate) async fn pass_ms(ms: u64) {
    tokio::time::sleep(Span::from_millis(ms)).await;
}

pub(crate) fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

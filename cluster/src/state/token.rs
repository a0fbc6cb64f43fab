//! One-time tokens: made, revoked, used and forgotten.

use super::{Change, NodeRecord, State, TokenRecord, TokenUse, node};
use crate::{
    command::{Enrolment, Outcome, Refusal, code},
    id::{NodeId, Role, TokenId},
    limits::{TOKEN_LIFETIME_MAX, TOKENS_OPEN_MAX, TOKENS_REMEMBERED_MAX},
    time::{Span, WallTime},
};

const MAKE_ANOTHER: &str = "Make another: postroad token create";

impl TokenRecord {
    /// How to make another like it. The first role brings the others.
    fn make_another(&self) -> String {
        let role = self.roles.first().copied().unwrap_or(Role::Node);
        format!("{MAKE_ANOTHER} --role {role}")
    }

    /// Whether somebody could still join by it.
    #[must_use]
    pub fn is_open(&self, now: WallTime) -> bool {
        self.used.is_none() && self.revoked.is_none() && now < self.expires
    }
}

impl State {
    pub(super) fn token_create(
        &mut self,
        now: WallTime,
        token: TokenId,
        record: TokenRecord,
    ) -> Result<Change, Refusal> {
        check_roles(&record)?;
        check_lifetime(now, record.expires)?;
        match self.tokens.get(&token) {
            Some(known) if *known == record => return Ok(Change::None(None)),
            Some(_) => {
                return Err(Refusal::new(code::TOKEN_EXISTS, format!("there is a {token} already"), MAKE_ANOTHER));
            }
            None => {}
        }
        if self.tokens.values().filter(|known| known.is_open(now)).count() >= TOKENS_OPEN_MAX {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("{TOKENS_OPEN_MAX} tokens wait for their joiner, which is all there may be"),
                "Revoke what is not needed: postroad token list, postroad token revoke",
            ));
        }
        self.forget_tokens(now);
        let what = format!("{token} made for {}", node::role_words(&record.roles));
        self.tokens.insert(token, record);
        Ok(Change::made(what))
    }

    /// Makes room for one more token; those that are no longer open go first to last by their end.
    fn forget_tokens(&mut self, now: WallTime) {
        while self.tokens.len() >= TOKENS_REMEMBERED_MAX {
            let closed = self.tokens.iter().filter(|(_, record)| !record.is_open(now));
            let Some(oldest) = closed.min_by_key(|(token, record)| (record.expires, **token)).map(|(token, _)| *token)
            else {
                return;
            };
            self.tokens.remove(&oldest);
        }
    }

    pub(super) fn token_revoke(&mut self, now: WallTime, token: TokenId) -> Result<Change, Refusal> {
        let record = self.token(token)?;
        if let Some(used) = &record.used {
            let hint = match self.nodes.get(&used.node) {
                Some(node) => format!("Remove the node instead: postroad node remove {}", node.name),
                None => String::new(),
            };
            return Err(Refusal::new(code::TOKEN_USED, self.used_words(now, used), hint));
        }
        if record.revoked.is_some() {
            return Ok(Change::None(None));
        }
        self.tokens.entry(token).and_modify(|record| record.revoked = Some(now));
        Ok(Change::made(format!("{token} revoked")))
    }

    // Case R12: exactly one joiner gets a token, and the same one gets the same answer again.
    pub(super) fn enrol(&mut self, now: WallTime, token: TokenId, enrolment: Enrolment) -> Result<Change, Refusal> {
        let record = self.token(token)?;
        if let Some(used) = &record.used {
            return self.enrolled_before(now, record, used, &enrolment).map(|outcome| Change::None(Some(outcome)));
        }
        if let Some(revoked) = record.revoked {
            let ago = ago(now, revoked);
            return Err(Refusal::new(
                code::TOKEN_REVOKED,
                format!("this token was revoked {ago}"),
                record.make_another(),
            ));
        }
        if record.expires <= now {
            let ago = ago(now, record.expires);
            return Err(Refusal::new(code::TOKEN_EXPIRED, format!("this token expired {ago}"), record.make_another()));
        }
        let roles = record.roles.clone();
        self.check_newcomer(&enrolment, &roles)?;
        let node = NodeId(self.last_node.0 + 1);
        let public = enrolment.public;
        let what = format!("{} joined as {node} with {} by {token}", enrolment.name, node::role_words(&roles));
        self.last_node = node;
        self.nodes.insert(node, NodeRecord::new(enrolment, roles.clone(), now));
        self.tokens.entry(token).and_modify(|record| record.used = Some(TokenUse { node, public, at: now }));
        Ok(Change::Made { what: Some(what), outcome: Some(Outcome::Enrolled { node, roles }) })
    }

    fn enrolled_before(
        &self,
        now: WallTime,
        token: &TokenRecord,
        used: &TokenUse,
        enrolment: &Enrolment,
    ) -> Result<Outcome, Refusal> {
        match self.nodes.get(&used.node) {
            Some(record) if used.public == enrolment.public && record.name == enrolment.name => {
                Ok(Outcome::Enrolled { node: used.node, roles: record.roles.clone() })
            }
            _ => Err(Refusal::new(code::TOKEN_USED, self.used_words(now, used), token.make_another())),
        }
    }

    fn used_words(&self, now: WallTime, used: &TokenUse) -> String {
        let ago = ago(now, used.at);
        match self.nodes.get(&used.node) {
            Some(node) => format!("this token was used {ago} by host {}", node.name),
            None => format!("this token was used {ago} by {}, which was removed since", used.node),
        }
    }

    fn token(&self, token: TokenId) -> Result<&TokenRecord, Refusal> {
        self.tokens
            .get(&token)
            .ok_or_else(|| Refusal::new(code::TOKEN_UNKNOWN, format!("this cluster knows no {token}"), MAKE_ANOTHER))
    }
}

fn check_roles(record: &TokenRecord) -> Result<(), Refusal> {
    let operator = record.roles.contains(&Role::Operator);
    if record.roles.is_empty() || (operator && record.roles.len() > 1) {
        return Err(Refusal::new(
            code::ROLES_INVALID,
            format!("a token for {} would make neither a node nor an operator", node::role_words(&record.roles)),
            "Give one of control, relay and node, or operator alone: postroad token create --role node",
        ));
    }
    Ok(())
}

fn check_lifetime(now: WallTime, expires: WallTime) -> Result<(), Refusal> {
    let hint = "Let it live an hour, at most 7 days: postroad token create --valid-for 1h";
    if expires <= now {
        return Err(Refusal::new(code::TOKEN_LIFETIME, format!("the token's end was {}", ago(now, expires)), hint));
    }
    if expires.since(now) > TOKEN_LIFETIME_MAX {
        let message = format!("the token would live {}", span_words(expires.since(now)));
        return Err(Refusal::new(code::TOKEN_LIFETIME, message, hint));
    }
    Ok(())
}

fn ago(now: WallTime, then: WallTime) -> String {
    format!("{} ago", span_words(now.since(then)))
}

fn span_words(span: Span) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

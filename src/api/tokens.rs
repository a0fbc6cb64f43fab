//! The handlers of `/api/tokens`: one-time invitations, and the command that uses one.

use std::{collections::BTreeSet, fmt::Write as _};

use postroad_cluster::{
    command::{Action, VerifierBytes},
    id::{Role, TokenId},
    state::State,
    time::{Clock as _, Span, WallTime},
};
use postroad_trust::{Fingerprint, JoinSecret};
use serde_json::json;

use super::{Answer, Core, route::data, view};
use crate::errors::Failure;

/// The command for the joiner's host. The token goes by the environment, which other users of a host cannot see.
fn command(wanted: &view::TokenCreate, token: &view::Token) -> String {
    let mut line = format!("POSTROAD_JOIN_TOKEN={} postroad join", token.token);
    for seed in &token.seeds {
        // Writing to a String cannot fail.
        let _ = write!(line, " --seed {seed}");
    }
    let _ = write!(line, " --fingerprint {}", token.fingerprint);
    let listens = matches!(wanted.role, Role::Control | Role::Relay);
    for (flag, value, fallback) in
        [("name", &wanted.name, Some("NAME")), ("advertise", &wanted.advertise, listens.then_some("HOST:9443"))]
    {
        if let Some(value) = value.as_deref().or(fallback) {
            let _ = write!(line, " --{flag} {value}");
        }
    }
    if wanted.run {
        line.push_str(" --run");
    }
    line
}

/// Control nodes that take joiners: those that may issue.
fn seeds(state: &State) -> Vec<String> {
    let controls = state.controls().into_iter().filter(|(node, _)| state.issuers.contains_key(node));
    controls.map(|(_, address)| address).collect()
}

fn row(state: &State, id: TokenId, now: WallTime) -> Option<view::TokenRow> {
    let record = state.tokens.get(&id)?;
    let word = match (&record.used, record.revoked) {
        (Some(_), _) => "used",
        (None, Some(_)) => "revoked",
        (None, None) if record.expires <= now => "expired",
        (None, None) => "open",
    };
    let user = record.used.as_ref().map(|used| {
        state.nodes.get(&used.node).map_or_else(|| used.node.to_string(), |record| record.name.to_string())
    });
    Some(view::TokenRow {
        id: id.to_string(),
        roles: record.roles.iter().copied().collect(),
        expires: record.expires,
        state: word.to_owned(),
        used_by: user,
        used: record.used.as_ref().map(|used| used.at),
    })
}

impl Core {
    pub(super) async fn token_create(&self, wanted: view::TokenCreate) -> Answer {
        let (state, _) = self.state().await?;
        let fabric = self.fabric();
        let secret = JoinSecret::generate(&*fabric.entropy);
        let authority = state.authorities.first();
        let fingerprint = authority.map(|der| Fingerprint::of(der).to_string()).unwrap_or_default();
        let expires = fabric.clock.wall().after(Span::from_secs(wanted.valid_seconds));
        let action = Action::TokenCreate {
            token: secret.id(),
            verifier: VerifierBytes(secret.hash()),
            roles: BTreeSet::from([wanted.role]),
            expires,
        };
        self.propose(action).await?;
        let mut token = view::Token {
            token: secret.reveal(),
            id: secret.id().to_string(),
            role: wanted.role,
            expires,
            seeds: seeds(&state),
            fingerprint,
            command: String::new(),
        };
        token.command = command(&wanted, &token);
        Ok(data(token))
    }

    pub(super) async fn token_list(&self) -> Answer {
        let (state, warnings) = self.state().await?;
        let now = self.fabric().clock.wall();
        let mut rows: Vec<view::TokenRow> = state.tokens.keys().filter_map(|id| row(&state, *id, now)).collect();
        rows.sort_by_key(|row| (row.state != "open", row.expires));
        Ok(data(json!({ "tokens": rows })).warn(warnings))
    }

    pub(super) async fn token_revoke(&self, id: &str) -> Answer {
        let number = id.strip_prefix("token-").and_then(|number| number.parse().ok());
        let token = number.map(TokenId).ok_or_else(|| {
            Failure::wrong_use(format!("{id:?} is no token's number, as token-123"))
                .hint("See them all: postroad token list")
        })?;
        self.propose(Action::TokenRevoke { token }).await?;
        Ok(data(json!({ "id": id })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_ready_to_be_run_and_keeps_the_token_off_the_process_list() {
        let wanted = view::TokenCreate {
            role: Role::Relay,
            valid_seconds: 3_600,
            name: Some("fra-1".into()),
            advertise: Some("fra-1.example.com:9443".into()),
            run: true,
        };
        let token = view::Token {
            token: "prt1-abc".into(),
            id: "token-1".into(),
            role: Role::Relay,
            expires: WallTime(0),
            seeds: vec!["ams:9443".into(), "nyc:9443".into()],
            fingerprint: "00ff".into(),
            command: String::new(),
        };
        assert_eq!(
            command(&wanted, &token),
            "POSTROAD_JOIN_TOKEN=prt1-abc postroad join --seed ams:9443 --seed nyc:9443 --fingerprint 00ff \
             --name fra-1 --advertise fra-1.example.com:9443 --run"
        );
        let open = view::TokenCreate { role: Role::Node, name: None, advertise: None, run: false, ..wanted };
        assert!(command(&open, &token).ends_with("--fingerprint 00ff --name NAME"));
    }
}

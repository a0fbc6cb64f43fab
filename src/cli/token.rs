//! `postroad token create|list|revoke`: one-time invitations to join.

use std::time::Duration;

use axum::http::Method;
use clap::{Args, Subcommand};
use postroad_cluster::{id::Role, limits::TOKEN_LIFETIME_MAX, time::WallTime};
use postroad_trust::JoinSecret;
use serde::Deserialize;
use serde_json::json;

use super::{Context, host_port, now, output::Output, read, relative, table::Table};
use crate::{api::view, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad token create --role node")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a one-time token, and print the command that uses it
    #[command(after_help = "Example: postroad token create --role control --valid-for 30min\n\n\
                            The token is shown once. Whoever has it can join once, until it ends: pass it on safely.")]
    Create {
        /// What the joiner becomes: control, relay or node
        #[arg(long, value_name = "ROLE", value_parser = joinable)]
        role: Role,
        /// How long it waits for its joiner, at most 7d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
        valid_for: Duration,
        /// The name to put into the printed command
        #[arg(long, value_name = "NAME")]
        name: Option<postroad_cluster::id::Name>,
        /// The address to put into the printed command
        #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
        advertise: Option<String>,
    },
    /// List tokens, without their secrets
    #[command(after_help = "Example: postroad token list")]
    List,
    /// Forbid a token that was not used
    #[command(after_help = "Example: postroad token revoke token-4711")]
    Revoke {
        /// Its number as the list shows it, or the token itself
        token: String,
    },
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the node does not answer or the cluster refuses.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Create { role, valid_for, name, advertise } => {
                let wanted = view::TokenCreate {
                    role: *role,
                    valid_seconds: valid_for.as_secs(),
                    name: name.as_ref().map(ToString::to_string),
                    advertise: advertise.clone(),
                    run: false,
                };
                create(context, &wanted)
            }
            Verb::List => list(context),
            Verb::Revoke { token } => revoke(context, token),
        }
    }
}

fn create(context: &Context, wanted: &view::TokenCreate) -> Result<Output, Failure> {
    let mut output = context.ask(Method::POST, "/api/tokens", Some(&json!(wanted)))?;
    let token: view::Token = read(&output)?;
    let ends = relative::moment(token.expires, now());
    let then = match wanted.role {
        Role::Control => "Once it runs, certify it there: postroad control promote NAME --authority FILE",
        _ => "Then run it there: postroad node",
    };
    output.human = format!(
        "one {} can join by this token, which ends unused {ends}. On its host:\n\n{}\n\n{then}\n\
         To take it back: postroad token revoke {}",
        noun(wanted.role),
        token.command,
        token.id
    );
    Ok(output)
}

const fn noun(role: Role) -> &'static str {
    match role {
        Role::Control => "control node",
        Role::Relay => "relay",
        Role::Node => "node",
        Role::Operator => "operator",
    }
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<view::TokenRow>,
}

fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/tokens", None)?;
    let Tokens { tokens } = read(&output)?;
    let mut table = Table::new(["token", "for", "state", "ends", "used by"]);
    for token in &tokens {
        let roles = token.roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(", ");
        let ends = if token.state == "open" { relative::moment(token.expires, now()) } else { "-".to_owned() };
        let used = token.used_by.as_ref().map(|user| {
            let when = relative::moment(token.used.unwrap_or(WallTime(0)), now());
            format!("{user}, {when}")
        });
        table.row([token.id.clone(), roles, token.state.clone(), ends, used.unwrap_or_default()]);
    }
    output.human = if table.is_empty() { "no token was made yet".to_owned() } else { table.render(context.style) };
    Ok(output)
}

fn revoke(context: &Context, token: &str) -> Result<Output, Failure> {
    let id = match JoinSecret::parse(token) {
        Ok(secret) => secret.id().to_string(),
        Err(_) if token.strip_prefix("token-").is_some_and(|number| number.parse::<u64>().is_ok()) => token.to_owned(),
        Err(_) => {
            return Err(Failure::wrong_use("this is neither a token's number, as token-123, nor a token")
                .hint("See them all: postroad token list"));
        }
    };
    let mut output = context.ask(Method::DELETE, &format!("/api/tokens/{id}"), None)?;
    output.human = format!("{id} is revoked: nobody can join by it");
    Ok(output)
}

fn joinable(text: &str) -> Result<Role, String> {
    match text.parse::<Role>()? {
        // An operator's certificate is not used by any protocol yet, so that a token for one would lead nowhere.
        Role::Operator => Err("nodes join as control, relay or node".to_owned()),
        role => Ok(role),
    }
}

/// A time as `90s`, `30min`, `1h` or `2d`.
pub(super) fn lifetime(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write it as 90s, 30min, 1h or 2d".to_owned()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let most = TOKEN_LIFETIME_MAX.as_secs();
    match seconds {
        Some(seconds) if (1..=most).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        Some(0) => Err("it must be at least 1s".to_owned()),
        _ => Err("it must be at most 7d: a forgotten token is a way in".to_owned()),
    }
}

/// What `relay add` asks for, in the same way.
pub(super) fn invite(context: &Context, wanted: &view::TokenCreate) -> Result<(Output, view::Token), Failure> {
    let output = context.ask(Method::POST, "/api/tokens", Some(&json!(wanted)))?;
    let token = read(&output)?;
    Ok((output, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_within_bounds() {
        for (text, seconds) in [("90s", 90), ("30min", 1_800), ("5m", 300), ("1h", 3_600), ("7d", 604_800)] {
            assert_eq!(lifetime(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "h", "1", "0h", "8d", "99999999999999999999d", "1.5h", "-1h"] {
            assert!(lifetime(bad).is_err(), "{bad}");
        }
    }
}

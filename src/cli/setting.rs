//! `postroad setting list|show|set`: what concerns the whole cluster.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;

use super::{Context, output::Output, read, segment, table::Table};
use crate::{api::view, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad setting list\n\nWhat is one node's own is in its file: postroad config show")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List every setting with its value, bounds and reason
    #[command(after_help = "Example: postroad setting list")]
    List,
    /// Show one setting
    #[command(after_help = "Example: postroad setting show policy_lease_hours")]
    Show {
        /// Its name
        name: String,
    },
    /// Set one
    #[command(after_help = "Example: postroad setting set policy_lease_hours 48")]
    Set {
        /// Its name
        name: String,
        /// Its value
        value: String,
    },
}

#[derive(Deserialize)]
struct Settings {
    settings: Vec<view::Setting>,
}

#[derive(Deserialize)]
struct Changed {
    name: String,
    value: u64,
    before: u64,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the node does not answer, or the value is out of bounds.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::List => {
                let mut output = context.ask(Method::GET, "/api/settings", None)?;
                let Settings { settings } = read(&output)?;
                let mut table = Table::new(["setting", ">value", ">default", "bounds", "what it is"]);
                for it in &settings {
                    let bounds = format!("{} to {}", it.least, it.most);
                    table.row([it.name.clone(), it.value.to_string(), it.default.to_string(), bounds, it.why.clone()]);
                }
                output.human = table.render(context.style);
                Ok(output)
            }
            Verb::Show { name } => {
                let mut output = context.ask(Method::GET, &format!("/api/settings/{}", segment(name)?), None)?;
                let it: view::Setting = read(&output)?;
                output.human = format!(
                    "{} is {} (default {}, from {} to {})\n{}",
                    context.style.heading(&it.name),
                    it.value,
                    it.default,
                    it.least,
                    it.most,
                    it.why
                );
                Ok(output)
            }
            Verb::Set { name, value } => {
                let body = json!(view::SettingSet { value: value.clone() });
                let path = format!("/api/settings/{}", segment(name)?);
                let mut output = context.ask(Method::POST, &path, Some(&body))?;
                let changed: Changed = read(&output)?;
                output.human = if changed.before == changed.value {
                    format!("{} is {} already", changed.name, changed.value)
                } else {
                    let Changed { name, value, before } = changed;
                    format!("{name} is {value} now, it was {before}\nTo undo: postroad setting set {name} {before}")
                };
                Ok(output)
            }
        }
    }
}

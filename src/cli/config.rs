//! `postroad config check|show|example`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Context, output::Output, table::Table};
use crate::{
    balancer::role::Roles,
    config::{self, Loaded, Origin, Place, Sources, keys, keys::Value},
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad config example > postroad.toml")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say everything that is wrong with a configuration, at once
    #[command(after_help = "Example: postroad config check postroad.toml\n\n\
                            The exit status is 0 if nothing is wrong and 1 if something is.")]
    Check {
        /// The file to check instead of the one in force
        file: Option<PathBuf>,
    },
    /// Show each value in force and where it comes from
    #[command(after_help = "Example: postroad config show")]
    Show,
    /// Print every key with its default and its reason
    #[command(after_help = "Example: postroad config example > postroad.toml")]
    Example,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the configuration cannot be read or is wrong.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Check { file } => {
                let file = file.clone().or_else(|| context.global.config.clone());
                let loaded = config::load(&Sources::of_process(file, context.global.data.clone()))?;
                let roles = Roles::load(&loaded.config.balancers)?;
                Ok(check(&loaded).warn(roles.warnings().cloned()))
            }
            Verb::Show => Ok(show(&context.load_config()?, context)),
            Verb::Example => {
                let example = keys::NODE.example();
                Ok(Output::new(json!({ "example": example }), example))
            }
        }
    }
}

fn check(loaded: &Loaded) -> Output {
    let count = |wanted: fn(&Origin) -> bool| loaded.settings.iter().filter(|setting| wanted(&setting.origin)).count();
    let from_file = count(|origin| matches!(origin, Origin::Set(Place::File { .. })));
    let from_above = count(|origin| matches!(origin, Origin::Set(Place::Environment(_) | Place::Flag(_))));
    let by_default = loaded.settings.len() - from_file - from_above;
    let file = loaded.file.as_ref().map(|path| path.display().to_string());
    let name = file.clone().unwrap_or_else(|| "no configuration file".to_owned());
    let human = format!(
        "{name}: nothing is wrong; {from_file} keys set here, {from_above} by the environment or flags, \
         {by_default} at their default"
    );
    let data = json!({ "file": file, "from_file": from_file, "from_above": from_above, "by_default": by_default });
    Output::new(data, human).warn(loaded.warnings.clone())
}

fn show(loaded: &Loaded, context: &Context) -> Output {
    let mut table = Table::new(["key", "value", "from"]);
    let mut data = Vec::new();
    for setting in &loaded.settings {
        let shown = setting.value.as_ref().map_or_else(|| "-".to_owned(), Value::to_string);
        table.row([setting.key.path(), shown, setting.origin.to_string()]);
        let value = match &setting.value {
            None => serde_json::Value::Null,
            Some(Value::Text(text)) => json!(text),
            Some(Value::Number(number)) => json!(number),
            Some(Value::Flag(flag)) => json!(flag),
        };
        data.push(json!({ "key": setting.key.path(), "value": value, "from": setting.origin.to_string() }));
    }
    for (name, file) in &loaded.config.balancers {
        let (key, value) = (format!("balancers.{name}"), file.display().to_string());
        let from = loaded.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        table.row([&key, &value, &from]);
        data.push(json!({ "key": key, "value": value, "from": from }));
    }
    Output::new(json!({ "settings": data }), table.render(context.style)).warn(loaded.warnings.clone())
}

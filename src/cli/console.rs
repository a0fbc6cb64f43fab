//! `postroad console`: the console in this terminal.

use std::io::{IsTerminal, stdin, stdout};

use clap::Args;
use postroad_cluster::id::Name;
use serde_json::json;

use super::{Context, output::Output};
use crate::{
    console::{
        act::{Acting, Role},
        terminal,
    },
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad console\n\n\
                        The pages of the browser's console over SSH: overview, actors, tree, control group, why; ? shows \
                        the keys. It asks the node on this host, which shows any other. The browser's is at \
                        console.listen of the configuration, http://127.0.0.1:9440 by default; from another machine: \
                        ssh -L 9440:127.0.0.1:9440 HOST, or with console.certificate and a token of the role read.")]
pub struct Command {
    /// The node to begin with [default: the one on this host]
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// Make a token for the browser's console, called like this, and print it once
    #[arg(long, value_name = "NAME", conflicts_with = "on")]
    make_token: Option<Name>,
    /// What the token allows: reading from other machines, or that and acting
    #[arg(long, value_enum, value_name = "ROLE", default_value_t = Role::Act, requires = "make_token")]
    role: Role,
}

impl Command {
    /// Runs it until it is left.
    ///
    /// # Errors
    /// When there is no terminal.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        if let Some(name) = &self.make_token {
            return make_token(context, name, self.role);
        }
        if !stdout().is_terminal() || !stdin().is_terminal() {
            return Err(Failure::wrong_use("the console needs a terminal")
                .hint("For scripts: postroad top --json, postroad diagnose --json"));
        }
        terminal::run(context.client()?, self.on.clone()).map(|()| Output::default())
    }
}

fn make_token(context: &Context, name: &Name, role: Role) -> Result<Output, Failure> {
    let config = context.load_config()?.config;
    let acting = Acting::within(&config.node.data);
    let token = acting.make_token(name, role)?;
    let file = acting.tokens.display();
    let off = "the console of this node only reads: it acts once the node is started with console.act = \"on\"";
    let human = format!("{token}\nIt is not shown again; {file} has its hash. To take it back, remove its line there.");
    let warnings = (role == Role::Act && !config.console.act).then(|| off.to_owned());
    Ok(Output::new(json!({ "name": name, "role": role.word(), "token": token, "file": acting.tokens }), human)
        .warn(warnings))
}

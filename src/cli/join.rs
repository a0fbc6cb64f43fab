//! `postroad join`: makes this host a node of a cluster, by a one-time token.

use std::path::PathBuf;

use clap::Args;
use postroad_actors::{identity::Kept, setup};
use postroad_cluster::id::Name;
use postroad_trust::{Fingerprint, JoinSecret};
use serde_json::json;
use tokio::runtime::Handle;

use super::{Context, host_port, name_or_host, output::Output};
use crate::{boot, config::Config, errors::Failure, telemetry};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad join --seed ams-1.example.com:9443 --fingerprint 5f0c2a --token prt1-abc \
                        --name web-1\n\n\
                        The whole command is printed by: postroad token create, or postroad relay add.\n\
                        The variable POSTROAD_JOIN_TOKEN keeps the token off the process list.")]
pub struct Command {
    /// A control node; give several, since some may be down
    #[arg(long = "seed", value_name = "HOST:PORT", required = true, value_parser = host_port)]
    seeds: Vec<String>,
    /// The fingerprint of the cluster's authority
    #[arg(long, value_name = "HEX")]
    fingerprint: String,
    /// The one-time token
    #[arg(
        long,
        value_name = "TOKEN",
        env = "POSTROAD_JOIN_TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file",
        required_unless_present = "token_file"
    )]
    token: Option<String>,
    /// A file with the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The name to have [default: node.name of the configuration, else the host's]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Where other nodes reach this one over UDP; control nodes and relays need it [default: relay.advertised]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    advertise: Option<String>,
    /// Go on as the node instead of ending
    #[arg(long)]
    run: bool,
}

impl Command {
    /// Joins, and runs the node where that was asked for.
    ///
    /// # Errors
    /// When the directory belongs to a node, no seed answers, or the cluster refuses.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let config = context.load_config()?.config;
        let name = name_or_host(self.name.as_ref(), &config)?;
        let invitation = setup::Invitation {
            seeds: self.seeds.clone(),
            fingerprint: self.fingerprint.parse::<Fingerprint>().map_err(|error| {
                Failure::wrong_use(format!("--fingerprint is not one: {error}"))
                    .hint("It is printed with the token: postroad token create")
            })?,
            secret: self.secret()?,
            name,
        };
        if self.run {
            telemetry::start(&config.log)?;
            let lived = boot::runtimes::Runtimes::start()?.run(|carriage| async move {
                let (kept, opened) = self.enrol(&config, invitation, &carriage).await?;
                tracing::info!(cluster = %kept.cluster, node = %kept.name, id = %kept.node, "joined");
                boot::live(&config, opened).await
            });
            return lived.map(|()| Output::default());
        }
        let (kept, _) = context.block_on(async { self.enrol(&config, invitation, &Handle::current()).await })?;
        Ok(output(context, &kept))
    }

    fn secret(&self) -> Result<JoinSecret, Failure> {
        let text = match (&self.token, &self.token_file) {
            (_, Some(file)) => std::fs::read_to_string(file).map_err(|error| {
                Failure::failed("TOKEN_UNREADABLE", format!("could not read token file {}: {error}", file.display()))
            })?,
            (token, None) => token.clone().unwrap_or_default(),
        };
        JoinSecret::parse(&text).map_err(|error| {
            Failure::new(crate::errors::Exit::WrongUse, error.code(), error.to_string())
                .hint("Copy it whole, or make another: postroad token create")
        })
    }

    async fn enrol(
        &self,
        config: &Config,
        invitation: setup::Invitation,
        carriage: &Handle,
    ) -> Result<(Kept, boot::Opened), Failure> {
        let mut opened = boot::open(config, carriage)?;
        if self.advertise.is_some() {
            opened.settings.advertised.clone_from(&self.advertise);
        }
        let enrolled = setup::enrol(&opened.ports, &opened.settings, &opened.databases, invitation).await;
        Ok((enrolled.map_err(|error| boot::not_made(&error))?, opened))
    }
}

fn output(context: &Context, kept: &Kept) -> Output {
    let roles = kept.roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(", ");
    let data_flag = boot::data_flag(context.global.data.as_ref());
    let (cluster, name, node) = (&kept.cluster, &kept.name, kept.node);
    let mut human = format!(
        "joined {cluster} as {name} ({node}: {roles})\n\nNext:\n  postroad{data_flag} node\n      runs this node"
    );
    if kept.roles.contains(&postroad_cluster::id::Role::Control) {
        let promote = format!("postroad{data_flag} control promote {name} --authority FILE");
        human.extend(["\n  ", &promote, "\n      lets it vote and sign, once it runs; needs the cluster's authority"]);
    }
    let data = json!({ "cluster": cluster, "node": name, "id": node, "roles": kept.roles });
    Output::new(data, human)
}

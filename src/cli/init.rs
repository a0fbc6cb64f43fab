//! `postroad init`: founds a cluster with this node as its first.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    num::NonZeroU32,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use clap::Args;
use postroad_actors::setup::{self, Founded};
use postroad_cluster::{id::Name, limits::AUTHORITY_SEAL_ROUNDS, time::Entropy};
use serde_json::json;
use tokio::runtime::Handle;

use super::{Context, host_port, name_or_host, output::Output, passphrase};
use crate::{boot, config::Config, entropy::SystemEntropy, errors::Failure};

const ROUNDS: NonZeroU32 = NonZeroU32::new(AUTHORITY_SEAL_ROUNDS).expect("the limit is not zero");

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad init harbour --name ams-1 --advertise ams-1.example.com:9443 --authority \
                        harbour.authority\n\n\
                        The authority is the root of the cluster's trust. It is needed again only to promote further \
                        control nodes, and belongs into a safe place off this host.")]
pub struct Command {
    /// The cluster's name
    #[arg(value_name = "CLUSTER")]
    cluster: Name,
    /// This node's name [default: node.name of the configuration, else the host's]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Where other nodes reach this one over UDP [default: relay.advertised of the configuration]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    advertise: Option<String>,
    /// The file to write the sealed authority to; it must not exist
    #[arg(long, value_name = "FILE")]
    authority: PathBuf,
    /// A file with the passphrase, instead of asking for it
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl Command {
    /// Founds the cluster.
    ///
    /// # Errors
    /// When the directory belongs to a node, the authority's file is there, or the passphrase is empty.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let config = context.load_config()?.config;
        let name = name_or_host(self.name.as_ref(), &config)?;
        let advertised = self.advertise.clone().or_else(|| config.relay.advertised.clone()).ok_or_else(|| {
            Failure::wrong_use("the first node is a control node, so others must know where to reach it")
                .hint("Say it: --advertise HOST:9443")
        })?;
        let passphrase = passphrase::read(self.passphrase_file.as_deref(), true)?;
        let mut file = create(&self.authority)?;
        let founded = context.block_on(found(&config, &self.cluster, &name, &advertised));
        let founded = match founded {
            Ok(founded) => founded,
            Err(failure) => {
                // It is ours, empty, and of no use to anybody.
                let _ = std::fs::remove_file(&self.authority);
                return Err(failure);
            }
        };
        let sealed = founded.authority.seal(&passphrase, ROUNDS, &SystemEntropy as &dyn Entropy);
        write(&mut file, &sealed, &self.authority).map_err(|error| {
            let (authority, data) = (self.authority.display(), config.node.data.display());
            Failure::failed("AUTHORITY_UNWRITTEN", format!("could not write the authority to {authority}: {error}"))
                .hint(format!("The cluster is of no use without it: remove {data}, and found it again"))
        })?;
        Ok(self.output(context, &founded, &name))
    }

    fn output(&self, context: &Context, founded: &Founded, name: &Name) -> Output {
        let (cluster, fingerprint) = (&self.cluster, founded.authority.fingerprint());
        let (authority, data) = (self.authority.display(), boot::data_flag(context.global.data.as_ref()));
        let human = format!(
            "{cluster} is founded; this node is {name} ({node}), its first control node and relay\n\
             \n  authority    {authority}, sealed by the passphrase: move it off this host into a safe place.\n\
             \x20              Further control nodes need it; whoever has both owns the cluster.\n\
             \x20 fingerprint  {fingerprint}\n\
             \nNext:\n  \
             postroad{data} node\n      runs this node\n  \
             postroad{data} token create --role control\n      invites a second control node, and a third: with three, \
             one may be lost\n  \
             postroad{data} status\n      says whether all is well",
            node = founded.node,
        );
        let data = json!({
            "cluster": cluster,
            "node": name,
            "id": founded.node,
            "fingerprint": fingerprint,
            "authority": self.authority,
        });
        Output::new(data, human)
    }
}

async fn found(config: &Config, cluster: &Name, name: &Name, advertised: &str) -> Result<Founded, Failure> {
    let mut opened = boot::open(config, &Handle::current())?;
    opened.settings.advertised = Some(advertised.to_owned());
    let boot::Opened { ports, settings, databases } = &opened;
    let founded = setup::found(ports, settings, databases, cluster.clone(), name.clone()).await;
    founded.map_err(|error| boot::not_made(&error))
}

/// Takes the file before anything is founded: what nobody can keep need not be made.
fn create(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let shown = path.display();
        if error.kind() == io::ErrorKind::AlreadyExists {
            return Failure::refused("AUTHORITY_EXISTS", format!("{shown} is there already, and is not overwritten"))
                .hint("Give another file by --authority");
        }
        Failure::failed("AUTHORITY_UNWRITTEN", format!("could not make the authority's file {shown}: {error}"))
    })
}

fn write(file: &mut File, sealed: &[u8], path: &Path) -> io::Result<()> {
    file.write_all(sealed)?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

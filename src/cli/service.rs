//! `postroad service install|remove`: the systemd unit that runs this host's node, or a database balancer, for good.

mod unit;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Context, confirm, output::Output};
use crate::errors::Failure;
use unit::{Runs, Unit};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad service install")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write the unit; systemctl starts it
    #[command(after_help = "Example: postroad service install --print\n\n\
                            The node must have been founded or have joined: postroad init, postroad join. --config and \
                            --data go into the unit as they are given here.")]
    Install(Place),
    /// Remove the unit; what the node keeps stays
    #[command(after_help = "Example: postroad service remove --yes\n\n\
                            A service that runs goes on until it is stopped: systemctl disable --now postroad")]
    Remove {
        #[command(flatten)]
        place: Place,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// Print the unit and write nothing
    #[arg(long)]
    print: bool,
    /// Run a database balancer by this configuration, without a cluster, in place of the node
    #[arg(long, value_name = "FILE")]
    database_balancer: Option<PathBuf>,
    /// Run it as this user, who owns the data directory
    #[arg(long, value_name = "NAME", default_value = "root")]
    user: String,
    /// Where units are
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the unit cannot be written or removed.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Install(place) => install(&place.unit(context)?, place),
            Verb::Remove { place, yes } => remove(&place.unit(context)?, place, *yes),
        }
    }
}

impl Place {
    fn unit(&self, context: &Context) -> Result<Unit, Failure> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if self.user.is_empty() || !self.user.bytes().all(plain) {
            return Err(Failure::wrong_use(format!("{:?} is no user: those have a-z, 0-9, - and _", self.user)));
        }
        let program = std::env::current_exe().map_err(|error| failed("find this program", Path::new("."), &error))?;
        let runs = match &self.database_balancer {
            Some(config) => Runs::DatabaseBalancer { config: absolute(config)? },
            None => Runs::Node {
                data: context.global.data.as_deref().map(absolute).transpose()?,
                config: context.global.config.as_deref().map(absolute).transpose()?,
            },
        };
        Ok(Unit { program, runs, user: self.user.clone() })
    }
}

/// A unit has no working directory to start a path at.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| failed("make an absolute path of", path, &error))
}

fn install(unit: &Unit, place: &Place) -> Result<Output, Failure> {
    let text = unit.text();
    let path = place.units.join(unit.name());
    let data = json!({ "unit": unit.name(), "path": path, "text": text });
    if place.print {
        return Ok(Output::new(data, text));
    }
    let before = fs::read_to_string(&path).ok();
    let what = match &before {
        Some(before) if *before == text => "has been there as it would be written now:",
        Some(_) => "replaced the former",
        None => "wrote",
    };
    if before.as_deref() != Some(&text) {
        fs::write(&path, &text).map_err(|error| failed("write", &path, &error))?;
    }
    let (name, path) = (unit.name(), path.display());
    let human = format!(
        "{what} {path}\nTo start it now and with the system: systemctl daemon-reload && systemctl enable --now {name}\n\
         To undo it: systemctl disable --now {name} && postroad service remove"
    );
    Ok(Output::new(data, human))
}

fn remove(unit: &Unit, place: &Place, yes: bool) -> Result<Output, Failure> {
    let path = place.units.join(unit.name());
    let shown = path.display();
    if !path.exists() {
        let message = format!("there is no {shown}, so there is nothing to remove");
        return Err(Failure::refused("SERVICE_UNKNOWN", message).hint("Where units are elsewhere: --units DIR"));
    }
    if place.print {
        return Ok(Output::new(json!({ "path": path }), format!("would remove {shown}")));
    }
    confirm(yes, &format!("{shown} is removed and does not start with the system any more"))?;
    fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
    let human = format!(
        "removed {shown}\nsystemd forgets it by: systemctl daemon-reload\nTo undo it: postroad service install"
    );
    Ok(Output::new(json!({ "path": path }), human))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::failed("SERVICE_FAILED", format!("could not {what} {}: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.hint("Run it as root, or write elsewhere by --units DIR"),
        io::ErrorKind::NotFound => failure.hint("Is this host run by systemd? --print shows the unit"),
        _ => failure,
    }
}

//! The supervisor at the root of one node's tree. Nobody is above it: when it fails, a callback hears of it.

use std::sync::Arc;

use postroad_cluster::{
    limits::{SUPERVISION_KILL_WITHIN, SUPERVISOR_STOP_WITHIN},
    supervision::{Exit, Supervision},
};
use tokio::sync::oneshot;

use super::{ChildSpec, Seat, SupervisorHandle, child};
use crate::{
    directory::{Context, Directory, Occupant},
    handle::{Handle, Slot},
    journal::panic_text,
    shell::Launch,
};

/// The tree of one node. It runs until it is stopped, killed, or fails; dropping this lets it run on.
#[derive(Debug)]
pub struct Root {
    context: Context,
    supervisor: SupervisorHandle,
    ended: oneshot::Receiver<Exit>,
    exit: Option<Exit>,
}

impl Root {
    /// Starts a supervisor at the path `id` with the children that `children` lists, and waits for these. `failed` is called with the reason
    /// when it has given up; everything under it has ended by then.
    ///
    /// An error says why the supervisor itself did not start; a child that does not start is a failure of the child.
    pub async fn start(
        context: Context,
        id: &str,
        children: impl FnOnce(&Seat<Supervision>) -> Vec<ChildSpec> + Send,
        failed: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self, String> {
        let path: Arc<str> = id.into();
        let slot = context.directory.settle(&path, None, 0, || Slot::<Supervision, ()>::new(&context, path.clone()));
        let seat = Seat { context: context.clone(), me: Handle::to(slot.clone()), supervisor: None };
        let supervisor = SupervisorHandle::to(seat.me.clone(), &context.directory)
            .ok_or_else(|| format!("{path} was removed while it started"))?;
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| children(&seat)))
            .map_err(|panic| format!("listing the children of {path}: {}", panic_text(&*panic)))?;
        let (behavior, performer) = child::assemble(&seat, listed)?;
        let task = Launch { slot: slot.clone(), behavior, performer, report: None, trace: None }.start(None).await?;
        let (tell, ended) = oneshot::channel();
        tokio::spawn(async move {
            // ractor's task never panics; it is cancelled only with the runtime.
            let _ = task.await;
            let exit = slot.exit().unwrap_or(Exit::Killed);
            if let Exit::Failed(reason) = &exit {
                failed(reason.clone());
            }
            // Nobody may be waiting.
            let _ = tell.send(exit);
        });
        Ok(Self { context, supervisor, ended, exit: None })
    }

    /// The root supervisor, through which children come and go.
    #[must_use]
    pub const fn supervisor(&self) -> &SupervisorHandle {
        &self.supervisor
    }

    /// The node's context.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// The node's actors.
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.context.directory
    }

    /// Waits until the tree has ended, and says how.
    pub async fn ended(&mut self) -> Exit {
        if let Some(exit) = &self.exit {
            return exit.clone();
        }
        let exit = (&mut self.ended).await.unwrap_or(Exit::Killed);
        self.exit.insert(exit).clone()
    }

    /// Stops everything in reverse order of its start, and kills what has not stopped in time.
    pub async fn stop(&mut self) -> Exit {
        let clock = self.context.clock.clone();
        self.supervisor.handle.slot().ask_to_stop();
        let limit = clock.sleep_until(clock.now().after(SUPERVISOR_STOP_WITHIN));
        let exit = tokio::select! {
            biased;
            exit = self.ended() => Some(exit),
            () = limit => None,
        };
        let exit = if let Some(exit) = exit {
            exit
        } else {
            self.kill();
            let limit = clock.sleep_until(clock.now().after(SUPERVISION_KILL_WITHIN));
            tokio::select! {
                biased;
                exit = self.ended() => exit,
                // It sits in a turn that does not return, and can do nothing more than end.
                () = limit => Exit::Killed,
            }
        };
        self.context.directory.leave(self.supervisor.path(), exit != Exit::Normal);
        exit
    }

    /// A crash of the node: see [`Directory::kill_all`].
    pub fn kill(&self) {
        self.context.directory.kill_all();
    }
}

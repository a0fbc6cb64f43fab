//! How a node ends with the demonstration that started it, even one that was killed: by the end of its standard input.

use std::io::{self, Read};

use tokio::sync::oneshot;

/// Set to `1`, a node stops at the end of its standard input.
pub const VARIABLE: &str = "POSTROAD_EXIT_WITH_STDIN";

/// Completes when whoever started this process has let go of it or is gone; never unless [`VARIABLE`] asks for it.
pub async fn let_go() {
    if std::env::var_os(VARIABLE).is_none_or(|value| value != "1") {
        return std::future::pending().await;
    }
    let (ended, end) = oneshot::channel();
    // A thread of its own, which nobody waits for: a read that blocks cannot be cancelled.
    let reader = std::thread::Builder::new().name("leash".to_owned()).spawn(move || {
        drain(io::stdin().lock());
        let _ = ended.send(());
    });
    match reader {
        Ok(_) => {
            let _ = end.await;
        }
        Err(error) => {
            tracing::warn!(%error, "no thread to watch standard input: this node does not end with its parent");
            std::future::pending::<()>().await;
        }
    }
}

/// Reads until there is no more.
fn drain(mut input: impl Read) {
    let mut ignored = [0; 256];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

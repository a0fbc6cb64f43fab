//! The console in a terminal: the same pages over SSH, moved through by keys. A thread of its own asks the node, so that
//! keys answer at once whatever the node does.
//!
//! - [`screen`]: what is open, and what each key does to it; pure
//! - [`draw`]: a screen as cells of the terminal

mod draw;
mod screen;

use std::{
    io::stdout,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use axum::http::Method;
use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        event::{self, Event, KeyEventKind},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

use self::screen::{Answer, Screen};
use crate::{api::client::Client, errors::Failure};

/// How often the open page is asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How often the terminal is looked at for keys, so that new pages show soon.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// Puts the terminal back however the console ends.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = disable_raw_mode();
        let _ = execute!(stdout(), LeaveAlternateScreen);
    }
}

fn failed(error: &std::io::Error) -> Failure {
    Failure::failed("NO_TERMINAL", format!("the terminal cannot be used: {error}"))
        .hint("Run it in a terminal; elsewhere postroad top and postroad diagnose say the same")
}

/// Runs the console until it is left. `runtime` runs what a question takes.
///
/// # Errors
/// When the terminal cannot be used.
pub fn run(client: Client, node: Option<String>) -> Result<(), Failure> {
    enable_raw_mode().map_err(|error| failed(&error))?;
    let _restore = Restore;
    execute!(stdout(), EnterAlternateScreen).map_err(|error| failed(&error))?;
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(|error| failed(&error))?;
    let mut screen = Screen::new(node);
    let wanted = Arc::new(Mutex::new(screen.address()));
    let (answers, answered) = channel();
    let (nudge, nudged) = channel();
    let asked = Arc::clone(&wanted);
    thread::spawn(move || ask(&client, &asked, &answers, &nudged));
    loop {
        terminal.draw(|frame| draw::draw(&mut screen, frame)).map_err(|error| failed(&error))?;
        if event::poll(KEYS_EVERY).map_err(|error| failed(&error))?
            && let Event::Key(key) = event::read().map_err(|error| failed(&error))?
            && key.kind != KeyEventKind::Release
            && !screen.key(key.code, key.modifiers)
        {
            return Ok(());
        }
        for answer in answered.try_iter() {
            screen.take(answer);
        }
        let address = screen.address();
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted != address {
            *wanted = address;
            // The thread ends with the console.
            let _ = nudge.send(());
        }
    }
}

/// Asks for the wanted page again and again, at once when another one is wanted, until the console is gone.
fn ask(client: &Client, wanted: &Mutex<String>, answers: &Sender<Answer>, nudged: &Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    loop {
        let address = wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let result = runtime.block_on(client.ask(Method::GET, &address, None));
        if answers.send(Answer { address, result }).is_err() {
            return;
        }
        match nudged.recv_timeout(ASK_EVERY) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => while nudged.try_recv().is_ok() {},
        }
    }
}

//! Pipes of the kernel between two sockets, and the bounded pool that they come from and return to.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Both ends of a pipe.
#[derive(Debug)]
pub struct PipeEnds {
    /// Where bytes go in.
    pub fill: OwnedFd,
    /// Where they come out.
    pub drain: OwnedFd,
}

/// A pipe on loan. Empty it goes back to its pool when it is dropped; with bytes in it, it is closed.
#[derive(Debug)]
pub struct Pipe {
    /// Only its drop takes them.
    ends: Option<PipeEnds>,
    held: usize,
    pool: Arc<Inner>,
}

impl Pipe {
    /// Both ends.
    pub fn ends(&self) -> &PipeEnds {
        self.ends.as_ref().expect("only its drop takes them")
    }

    /// How many bytes are in it.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Counts bytes that went in.
    pub const fn filled(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Counts bytes that came out.
    pub const fn drained(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.ends.take() {
            Some(ends) if self.held == 0 => state.idle.push(ends),
            // Somebody else's bytes must never come out of it.
            _ => state.made -= 1,
        }
    }
}

/// Pipes that were made, at most so many; those on loan are not in `idle`.
#[derive(Debug, Default)]
struct State {
    idle: Vec<PipeEnds>,
    made: usize,
}

#[derive(Debug)]
struct Inner {
    pipes_max: usize,
    state: Mutex<State>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool of pipes. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct PipePool(Arc<Inner>);

impl PipePool {
    /// A pool of at most `pipes_max` pipes, none made yet.
    #[must_use]
    pub fn new(pipes_max: usize) -> Self {
        Self(Arc::new(Inner { pipes_max, state: Mutex::default() }))
    }

    /// An empty pipe: one that came back, or one that `make` makes. `None` if all are on loan or `make` fails, which
    /// it does when descriptors are short.
    pub fn take(&self, make: impl FnOnce() -> io::Result<PipeEnds>) -> Option<Pipe> {
        let mut state = self.0.lock();
        let ends = match state.idle.pop() {
            Some(ends) => ends,
            None if state.made >= self.0.pipes_max => return None,
            None => {
                let ends = make().ok()?;
                state.made += 1;
                ends
            }
        };
        drop(state);
        Some(Pipe { ends: Some(ends), held: 0, pool: Arc::clone(&self.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make() -> io::Result<PipeEnds> {
        let (drain, fill) = io::pipe()?;
        Ok(PipeEnds { fill: fill.into(), drain: drain.into() })
    }

    #[test]
    fn a_pool_lends_up_to_its_bound_and_takes_only_empty_pipes_back() {
        let pool = PipePool::new(2);
        let first = pool.take(make).unwrap();
        let mut second = pool.take(make).unwrap();
        assert!(pool.take(make).is_none());
        drop(first);
        assert!(pool.take(|| panic!("the one that came back serves")).is_some());
        second.filled(3);
        drop(second);
        assert_eq!(pool.0.lock().idle.len(), 1, "the one with bytes in it was closed");
        let both = [pool.take(make), pool.take(make)];
        assert!(both.iter().all(Option::is_some), "and its place is free again");
    }

    #[test]
    fn a_pool_without_descriptors_lends_none_and_loses_no_place() {
        let pool = PipePool::new(1);
        assert!(pool.take(|| Err(io::ErrorKind::Other.into())).is_none());
        assert!(pool.take(make).is_some());
    }
}

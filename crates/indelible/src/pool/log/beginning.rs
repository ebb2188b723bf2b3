//! A session that begins after the open has returned.
//!
//! After a crash a new session takes several syncs to begin (see `backlog`), and of all that an open is waited for, the first lookup
//! needs none of them. So a thread of its own begins the session. Until it has:
//!
//! | who | what happens |
//! |---|---|
//! | readers | read. Nothing has been written in this session that they would have to wait for |
//! | operations that write, and whoever wants a sync, a backup, a longer pool, or to close | wait in [`Beginning::wait`], before they have taken any lock |
//! | what the open itself stores, and what threads store that rebuild something | is kept, and appended before everything else when the session has begun |
//!
//! If the process dies before, the files are as before the open, and what was kept is lost: nobody was told of it. If the session cannot begin,
//! the pool takes no writes, as after any failure of its log.

use super::held::Held;
use super::progress::Progress;
use super::{Backlog, Bug, Log};
use crate::concurrency::sync::lock;
use crate::pmem::journal::{Sink, Word};
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A log that has begun, or is about to.
#[derive(Default)]
pub(crate) struct Beginning {
    /// The log, or why there is none.
    log: OnceLock<std::result::Result<Arc<Log>, String>>,
    /// What earlier sessions have left.
    backlog: Option<Arc<Backlog>>,
    state: Mutex<State>,
    /// Somebody waits for the log, or it has begun.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Batches that came before the log.
    kept: Vec<Vec<Word>>,
    is_wanted: bool,
}

impl Beginning {
    /// A log that has begun.
    pub(crate) fn done(log: Arc<Log>) -> Self {
        Self {
            log: OnceLock::from(Ok(log)),
            ..Self::default()
        }
    }

    /// A log that continues this backlog.
    pub(crate) fn after(backlog: Option<Arc<Backlog>>) -> Self {
        Self {
            backlog,
            ..Self::default()
        }
    }

    /// The log, if it has begun.
    #[inline]
    pub(crate) fn log(&self) -> Option<&Arc<Log>> {
        self.log.get()?.as_ref().ok()
    }

    /// The log, as soon as it has begun.
    #[inline]
    pub(crate) fn wait(&self) -> Result<&Arc<Log>> {
        match self.log.get() {
            Some(Ok(log)) => Ok(log),
            _ => self.wait_long(),
        }
    }

    #[cold]
    fn wait_long(&self) -> Result<&Arc<Log>> {
        let mut state = lock(&self.state);
        state.is_wanted = true;
        self.changed.notify_all();
        loop {
            match self.log.get() {
                Some(Ok(log)) => return Ok(log),
                Some(Err(why)) => return Err(Error::LogFailed(why.clone())),
                None => {}
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How far the log is. The session has begun, or continues a backlog.
    pub(super) fn progress(&self) -> &Arc<Progress> {
        let of_backlog = self.backlog.as_ref().map(|backlog| backlog.progress());
        of_backlog
            .or_else(|| self.log().map(|log| &log.progress))
            .expect("invariant: a session that begins late continues a backlog")
    }

    /// Sleeps until somebody waits for the log, but not longer than this, unless the work is held up.
    pub(crate) fn sleep(&self, most: Duration, held: &Held) {
        let end = Instant::now() + most;
        let mut state = lock(&self.state);
        while !state.is_wanted {
            let mut rest = end.saturating_duration_since(Instant::now());
            if held.is_held() {
                rest = rest.max(Duration::from_millis(1));
            }
            if rest.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The session has begun, or cannot.
    pub(crate) fn end(&self, log: Result<Arc<Log>>) {
        let mut state = lock(&self.state);
        let batches = std::mem::take(&mut state.kept);
        if let Ok(log) = &log
            && !planted(Bug::KeptForgotten)
        {
            // In their order, and before whatever comes from now on.
            batches.iter().for_each(|batch| _ = log.append(batch));
        }
        let _ = self.log.set(log.map_err(|error| error.to_string()));
        self.changed.notify_all();
    }
}

impl Sink for Beginning {
    fn append(&self, words: &[Word]) -> u64 {
        // Who has stored them may have read what is wrong; they must not outlive the process.
        let is_damaged = |backlog: &Arc<Backlog>| backlog.expect_whole().is_err();
        if self.backlog.as_ref().is_some_and(is_damaged) {
            return u64::MAX;
        }
        if let Some(log) = self.log() {
            return log.append(words);
        }
        let mut state = lock(&self.state);
        match self.log.get() {
            Some(Ok(log)) => {
                drop(state);
                log.append(words)
            }
            Some(Err(_)) => u64::MAX,
            None => {
                state.kept.push(words.to_vec());
                // Nobody waits for it: whoever acknowledges something has waited for the log first.
                0
            }
        }
    }
}

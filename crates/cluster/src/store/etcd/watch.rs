//! The view of all keys: a read of everything, then the changes since its revision.
//!
//! A watch that breaks begins again after the revision of the view. If etcd has forgotten the changes since
//! then (compaction), or a value cannot be understood, everything is read again. A read from time to time
//! finds a watch that hangs, as on a member of etcd that is cut off.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::super::{StoreError, StoreEvent};
use super::http::CallError;
use super::{Shared, api};
use crate::snapshot::Snapshot;

/// A line of the gateway's answer has at most so many bytes.
const LINE_MAX: usize = 64 << 20;

impl Shared {
    /// Follows the keys for ever.
    pub(super) async fn follow(self: Arc<Shared>) {
        loop {
            match self.read().await {
                Ok(view) => {
                    self.recover();
                    let revision = view.revision;
                    self.publish(view);
                    tokio::select! {
                        () = self.watch(revision + 1) => {}
                        () = Arc::clone(&self).poll() => {}
                    }
                }
                Err(error) => {
                    self.fail(error.into());
                    tokio::time::sleep(self.config.timeout / 4).await;
                }
            }
        }
    }

    /// Makes a view known, if it is newer than the last view.
    fn publish(&self, view: Snapshot) {
        let mut state = self.state();
        if view.revision <= state.view.revision {
            return;
        }
        state.view = Arc::new(view);
        let view = Arc::clone(&state.view);
        drop(state);
        self.emit(StoreEvent::View(view));
    }

    /// Reads everything from time to time. Returns when the watch has missed something, or a read fails.
    async fn poll(self: Arc<Shared>) {
        let pause = Duration::from_millis(self.config.ttl);
        loop {
            tokio::time::sleep(pause).await;
            let known = self.state().view.revision;
            let Ok(view) = self.read().await else { return };
            let has_new = has_changes_after(&view, known);
            // The watch may be just about to deliver them.
            tokio::time::sleep(pause / 10).await;
            let lags = has_new && self.state().view.revision < last_change(&view);
            self.publish(view);
            if lags {
                return;
            }
        }
    }

    /// Follows the changes from a revision on. Returns when everything has to be read again.
    async fn watch(&self, revision: u64) {
        if let Err(error) = self.try_watch(revision).await {
            self.fail(error.into());
        }
    }

    async fn try_watch(&self, revision: u64) -> Result<(), CallError> {
        let mut body = self.client.open("watch", &api::watch(&self.paths, revision)).await?;
        let mut lines = Lines::default();
        while let Some(line) = lines.next(&mut body).await? {
            let answer: Value = serde_json::from_slice(&line).map_err(|error| CallError::broken(&error))?;
            if let Some(error) = answer.get("error") {
                return Err(CallError::broken(&error));
            }
            self.check_header(&answer).map_err(CallError::Refused)?;
            let result = &answer["result"];
            if result["canceled"] == true {
                return Ok(());
            }
            self.advance(result).map_err(CallError::Refused)?;
        }
        Ok(())
    }

    /// Makes the changes of an answer, if the view does not have them.
    fn advance(&self, result: &Value) -> Result<(), StoreError> {
        let mut view = Snapshot::clone(&self.state().view);
        if result["created"] == true || api::number(&result["header"], "revision") <= view.revision {
            return Ok(());
        }
        api::apply(&self.paths, &mut view, result)?;
        self.paths.check(&view)?;
        self.publish(view);
        Ok(())
    }
}

fn last_change(view: &Snapshot) -> u64 {
    let nodes = view.nodes.values().map(|entry| entry.revision);
    let alive = view.alive.values().map(|entry| entry.revision);
    let shards = view.shards.values().map(|entry| entry.revision);
    let moves = view.migrations.values().map(|entry| entry.revision);
    nodes.chain(alive).chain(shards).chain(moves).max().unwrap_or(0)
}

fn has_changes_after(view: &Snapshot, revision: u64) -> bool {
    last_change(view) > revision
}

/// Splits a body into lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    async fn next(&mut self, body: &mut Incoming) -> Result<Option<Vec<u8>>, CallError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, rest)));
            }
            match body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(CallError::broken(&error)),
                Some(Ok(frame)) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
            if self.rest.len() > LINE_MAX {
                return Err(CallError::broken(&"an answer is too long"));
            }
        }
    }
}

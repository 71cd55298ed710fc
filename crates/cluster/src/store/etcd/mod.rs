//! etcd, by its gateway: JSON over HTTP. The thread `cluster-store` does all of it.
//!
//! A transaction is sent at most once: a second request might be refused because the first was made. A
//! transaction counts as refused only if the request never left this machine, or if etcd says so.

mod api;
mod http;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use self::http::{CallError, Client};
use super::{EventSink, Meta, Paths, Request, Store, StoreError, StoreEvent};
use crate::decide::Outcome;
use crate::snapshot::{LeaseId, Snapshot, Transaction};

pub use self::http::Tls;

/// How to reach etcd, and which keys to use.
#[derive(Clone, Debug)]
pub struct Config {
    /// `host:port` of each member of etcd.
    pub endpoints: Vec<String>,
    pub tls: Option<Tls>,
    /// User name and password.
    pub user: Option<(String, String)>,
    /// The first part of all keys.
    pub prefix: String,
    /// The second part of all keys.
    pub cluster: String,
    /// The identity of the cluster that the node belongs to, if it knows one: [`Meta::cluster`].
    pub expected: Option<String>,
    /// The identity of a cluster that does not exist yet.
    pub identity: String,
    /// Time to live of leases, in milliseconds; etcd knows whole seconds, and rounds up.
    pub ttl: u64,
    /// The longest time for an answer.
    pub timeout: Duration,
}

/// A connection to etcd. Dropping it ends the thread, and keeps the lease.
pub struct Etcd {
    requests: mpsc::UnboundedSender<(Request, u64)>,
    clock: fn() -> u64,
    end: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What the tasks of the thread share.
struct Shared {
    config: Config,
    client: Client,
    paths: Paths,
    sink: EventSink,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    view: Arc<Snapshot>,
    /// The identity of the etcd cluster, and the highest revision that it has shown.
    identity: Option<String>,
    revision: u64,
    /// The store has forgotten changes: nothing it says counts any more.
    is_unusable: bool,
    is_identified: bool,
    /// The last error that was reported.
    failure: Option<StoreError>,
}

impl Etcd {
    /// Starts the thread, which connects as soon as it can. `clock` gives the time of requests, see
    /// [`boot_clock`](super::boot_clock).
    pub fn start(config: Config, clock: fn() -> u64, sink: EventSink) -> Result<Etcd, StoreError> {
        let paths = Paths::new(&config.prefix, &config.cluster)?;
        let client = Client::new(&config)?;
        let (requests, receiver) = mpsc::unbounded_channel();
        let end = Arc::new(Notify::new());
        let shared = Shared { config, client, paths, sink, state: Mutex::default() };
        let ends = Arc::clone(&end);
        let spawned = std::thread::Builder::new()
            .name("cluster-store".into())
            .spawn(move || run(Arc::new(shared), receiver, &ends));
        let thread = spawned.map_err(|error| unreachable(&error))?;
        Ok(Etcd { requests, clock, end, thread: Some(thread) })
    }
}

impl Store for Etcd {
    fn send(&self, request: Request) {
        // Without the thread there is no answer, as without a network.
        _ = self.requests.send((request, (self.clock)()));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

fn unreachable(error: &impl std::fmt::Display) -> StoreError {
    StoreError::Unreachable { reason: error.to_string() }
}

fn run(shared: Arc<Shared>, mut requests: mpsc::UnboundedReceiver<(Request, u64)>, end: &Notify) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return (shared.sink)(StoreEvent::Failed(unreachable(&error))),
    };
    runtime.block_on(async {
        tokio::spawn(Arc::clone(&shared).follow());
        loop {
            tokio::select! {
                () = end.notified() => break,
                request = requests.recv() => match request {
                    Some((request, sent)) => drop(tokio::spawn(Arc::clone(&shared).serve(request, sent))),
                    None => break,
                },
            }
        }
    });
}

impl Shared {
    fn emit(&self, event: StoreEvent) {
        (self.sink)(event);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports an error, unless it was the last report.
    fn fail(&self, error: StoreError) {
        let mut state = self.state();
        if state.failure.as_ref() != Some(&error) {
            state.failure = Some(error.clone());
            drop(state);
            self.emit(StoreEvent::Failed(error));
        }
    }

    fn recover(&self) {
        self.recover_from(|_| true);
    }

    /// Reports that the last error is over, if it is one of these.
    fn recover_from(&self, is_over: impl FnOnce(&StoreError) -> bool) {
        let mut state = self.state();
        if state.failure.take_if(|failure| is_over(failure)).is_some() {
            drop(state);
            self.emit(StoreEvent::Recovered);
        }
    }

    /// Calls etcd. The header of the answer shows whether it is still the same etcd.
    async fn call(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        let answer = self.client.call(path, body).await?;
        self.check_header(&answer).map_err(CallError::Refused)?;
        let of_a_request = |failure: &StoreError| {
            matches!(failure, StoreError::Unreachable { .. } | StoreError::Answer { .. })
        };
        self.recover_from(of_a_request);
        Ok(answer)
    }

    /// Checks that the store has not forgotten anything.
    fn check_header(&self, answer: &Value) -> Result<(), StoreError> {
        let header = answer.get("header").or_else(|| answer.pointer("/result/header"));
        let Some(header) = header else { return Ok(()) };
        let identity = header.get("cluster_id").and_then(Value::as_str).unwrap_or_default();
        let revision = api::number(header, "revision");
        let mut state = self.state();
        let known = state.identity.get_or_insert_with(|| identity.into());
        if known != identity {
            state.is_unusable = true;
        }
        if state.is_unusable {
            let reason = "its identity is another, or its revision has gone back".into();
            return Err(StoreError::WentBack { reason });
        }
        state.revision = state.revision.max(revision);
        Ok(())
    }

    /// A read that no other request overtakes showed this revision.
    fn check_revision(&self, before: u64, revision: u64) -> Result<(), StoreError> {
        if revision >= before {
            return Ok(());
        }
        self.state().is_unusable = true;
        let reason = format!("its revision went from {before} back to {revision}");
        Err(StoreError::WentBack { reason })
    }

    async fn serve(self: Arc<Shared>, request: Request, sent: u64) {
        match request {
            Request::Grant => self.grant(sent).await,
            Request::Renew(lease) => self.renew(lease, sent).await,
            Request::Revoke(lease) => {
                _ = self.call("lease/revoke", &json!({ "ID": lease.to_string() })).await;
            }
            Request::Submit(number, transaction) => {
                let outcome = self.submit(&transaction).await;
                self.emit(StoreEvent::Answered { number, outcome });
            }
        }
    }

    async fn grant(&self, sent: u64) {
        let seconds = self.config.ttl.div_ceil(1_000).to_string();
        match self.call("lease/grant", &json!({ "TTL": seconds })).await {
            Ok(answer) => self.emit(StoreEvent::Granted { lease: api::number(&answer, "ID"), sent }),
            Err(error) => self.lease_failed(error),
        }
    }

    async fn renew(&self, lease: LeaseId, sent: u64) {
        match self.call("lease/keepalive", &json!({ "ID": lease.to_string() })).await {
            Ok(answer) if api::number(&answer["result"], "TTL") > 0 => {
                self.emit(StoreEvent::Renewed { lease, sent });
            }
            Ok(_) => self.emit(StoreEvent::LeaseLost { lease }),
            Err(error) => {
                if let CallError::Refused(StoreError::WentBack { .. }) = error {
                    self.emit(StoreEvent::LeaseLost { lease });
                }
                self.lease_failed(error);
            }
        }
    }

    fn lease_failed(&self, error: CallError) {
        self.emit(StoreEvent::LeaseUnanswered);
        self.fail(error.into());
    }

    async fn submit(&self, transaction: &Transaction) -> Outcome {
        let body = api::transaction(&self.paths, transaction);
        match self.call("kv/txn", &body).await {
            Ok(answer) if answer["succeeded"] == true => {
                self.recover_from(|failure| matches!(failure, StoreError::NoSpace));
                Outcome::Committed(api::number(&answer["header"], "revision"))
            }
            Ok(_) => Outcome::Refused,
            Err(error) => {
                let outcome = if error.was_not_made() { Outcome::Refused } else { Outcome::Unknown };
                self.fail(error.into());
                outcome
            }
        }
    }

    /// Reads all keys.
    async fn read(&self) -> Result<Snapshot, CallError> {
        let before = self.state().revision;
        let answer = self.call("kv/range", &api::range(&self.paths)).await?;
        self.check_revision(before, api::number(&answer["header"], "revision"))
            .map_err(CallError::Refused)?;
        let (view, meta) = api::snapshot(&self.paths, &answer).map_err(CallError::Refused)?;
        self.check_meta(meta.as_ref()).map_err(CallError::Refused)?;
        self.paths.check(&view).map_err(CallError::Refused)?;
        if meta.is_none() {
            self.write_meta().await?;
        }
        Ok(view)
    }

    fn check_meta(&self, meta: Option<&Meta>) -> Result<(), StoreError> {
        let key = || self.paths.path(crate::snapshot::Key::Meta);
        match (&self.config.expected, meta) {
            (Some(expected), Some(meta)) if *expected != meta.cluster => Err(StoreError::OtherCluster {
                key: key(),
                found: meta.cluster.clone(),
                expected: expected.clone(),
            }),
            (Some(_), None) => {
                Err(StoreError::WentBack { reason: format!("it has no key '{}' any more", key()) })
            }
            (_, Some(meta)) => {
                self.identify(meta);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Reports the identity of the cluster, once.
    fn identify(&self, meta: &Meta) {
        let is_new = !std::mem::replace(&mut self.state().is_identified, true);
        if is_new {
            self.emit(StoreEvent::Identified { cluster: meta.cluster.clone() });
        }
    }

    /// The first node of a cluster gives it an identity.
    async fn write_meta(&self) -> Result<(), CallError> {
        let meta = Meta { format: super::FORMAT, cluster: self.config.identity.clone() };
        let answer = self.call("kv/txn", &api::first_meta(&self.paths, &meta)).await?;
        if answer["succeeded"] == true {
            self.identify(&meta);
        }
        Ok(())
    }
}

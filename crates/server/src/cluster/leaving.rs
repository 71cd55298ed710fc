//! What ends when slots leave this node: clients that wait for their keys are redirected, watches of their
//! keys are touched, recorded reads are invalidated, and listeners to their channels are unsubscribed.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::{SubscriptionKind, push_queue};
use evenkeel_client::session::Session;
use evenkeel_cluster::SLOTS;
use evenkeel_command::error::Error;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, Spec};
use evenkeel_config::Settings;
use evenkeel_replication::Host;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::ThreadContext;
use evenkeel_store::key::slot_of;

use super::endpoint::Viewpoint;
use super::routing::{down, redirect, try_again};
use super::view::{ClusterView, SlotState};
use crate::server::Server;
use crate::worker::inbox::Message;

/// Follows a new view, under which all commands run by now.
pub(super) fn follow(server: &Server, old: &ClusterView, new: &ClusterView, ctx: &mut ThreadContext) {
    if new.closed.is_empty() && new.paused.is_empty() {
        redirect_waiting(server, new); // slots that are closed leave, or open again, soon
    }
    let left: Vec<u16> = (0..SLOTS as u16).filter(|slot| old.has(*slot) && !new.has(*slot)).collect();
    if let Some(cluster) = &server.cluster {
        let has_moved = |slot: &u16| old.has(*slot) != new.has(*slot);
        (0..SLOTS as u16).filter(has_moved).for_each(|slot| cluster.slot_stats.reset_slot(slot));
    }
    if left.is_empty() {
        return;
    }
    let has_left = |name: &[u8]| left.binary_search(&slot_of(name)).is_ok();
    touch_watches(server, &left, ctx);
    server.hub.tracking.forget_where(has_left);
    push_queue::notify_workers(&server.hub);
    let shards = server.hub.pubsub.names(SubscriptionKind::Shard, None);
    if shards.iter().any(|name| has_left(name)) {
        server.inboxes.iter().for_each(|inbox| inbox.post(Message::ShardsLeft));
    }
}

/// Ends the waits of clients whose keys are not here, with a redirection.
fn redirect_waiting(server: &Server, view: &ClusterView) {
    let settings = server.core.settings();
    for client in server.hub.clients.list() {
        let Some(blocked) = client.wait.lock().upgrade() else { continue };
        let command = (table().row(blocked.id), &blocked.args.as_args());
        let Some(error) = gone(view, &settings, &client, command) else { continue };
        if let Some(resumed) = blocked.fail(&error) {
            server.record_ended_wait(blocked.id, &error);
            server.hub.resume(resumed);
        }
    }
}

/// Returns the error for a command that was admitted under an earlier view and has not ended, if a key of it
/// is not here any more.
pub(crate) fn gone(
    view: &ClusterView,
    settings: &Settings,
    client: &ClientInfo,
    (row, args): (&Spec, &Args<'_>),
) -> Option<Error> {
    let mut slots = Vec::new();
    row.keys.for_each(args, 0, u32::MAX, |index, _| slots.push(slot_of(args.at(index))));
    let reads = !row.flags.has(Flags::WRITE);
    let works = view.is_up || reads && settings.cluster_allow_reads_when_down;
    if !slots.is_empty() && !works {
        return Some(down());
    }
    if slots.iter().any(|slot| view.closed.contains(*slot)) {
        return Some(try_again());
    }
    let reads_replica = reads && client.reads_replica.load(Relaxed);
    let gone = slots.into_iter().find(|slot| match view.state(*slot) {
        SlotState::Unowned | SlotState::Other => true,
        SlotState::Importing => !view.is_primary,
        SlotState::Own | SlotState::Migrating => !view.is_primary && !reads_replica,
    })?;
    Some(redirect("MOVED", gone, view.primary_of(gone), view, (settings, &Viewpoint::of(client))))
}

fn touch_watches(server: &Server, slots: &[u16], ctx: &mut ThreadContext) {
    let keyspace = &server.core.keyspace;
    keyspace.enter(ctx);
    let mut guard = keyspace.hold_none(ctx);
    for db in 0..keyspace.databases() {
        guard.touch_watches_in(db, slots.iter().copied());
    }
    drop(guard);
    keyspace.leave(ctx);
}

/// Ends a client's subscriptions to the shard channels whose slots are not here, and notifies it.
pub(crate) fn unsubscribe(server: &Server, view: &ClusterView, session: &mut Session) {
    let Some(mut subscriptions) = session.subscriptions.take() else { return };
    let names = subscriptions.names(SubscriptionKind::Shard).filter(|name| !view.has(slot_of(name)));
    let gone: Vec<Box<[u8]>> = names.map(Into::into).collect();
    for name in gone {
        subscriptions.remove(SubscriptionKind::Shard, &name);
        server.hub.pubsub.leave(SubscriptionKind::Shard, &name, &session.client);
        let mut message = Encoder { resp3: session.client.is_resp3(), ..Encoder::default() };
        message.push(3);
        message.bulk(b"sunsubscribe");
        message.bulk(&name);
        message.int(subscriptions.count(SubscriptionKind::Shard) as i64);
        push_queue::put(&session.client, message.bytes, u64::MAX);
    }
    subscriptions.note(&session.client);
    session.subscriptions = Some(subscriptions).filter(|subscriptions| !subscriptions.is_empty());
}

//! A call: one command being run, with all that its handler may use.

use std::sync::Arc;

use evenkeel_store::{Held, Key};

use super::{Args, Id};
use crate::blocking::Mode;
use crate::config::Settings;
use crate::reply::Reply;
use crate::server::Server;
use crate::session::Session;

/// See the module's text. The fields are separate, so that a value borrowed from `held` can be written to `reply`.
pub(crate) struct Call<'a, 'h> {
    pub(crate) id: Id,
    pub(crate) args: Args<'a>,
    /// The keys that the row declares, in order.
    pub(crate) keys: &'a [Key<'a>],
    /// What the row's reach says: the keys' slots, nothing, or everything.
    pub(crate) held: &'a mut Held<'h>,
    pub(crate) reply: &'a mut Reply,
    pub(crate) session: &'a mut Session,
    pub(crate) server: &'a Arc<Server>,
    pub(crate) settings: &'a Arc<Settings>,
    /// The worker that runs this.
    pub(crate) worker: usize,
    pub(crate) mode: Mode,
}

impl Call<'_, '_> {
    /// The time by which this command goes, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.held.seat.now_ms
    }

    /// The row's name in lower case, for error texts.
    pub(crate) fn name(&self) -> &'static str {
        super::table::table().row(self.id).name
    }
}

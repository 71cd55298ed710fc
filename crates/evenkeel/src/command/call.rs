//! A call: one command being run, with all that its handler may use.

use std::sync::Arc;

use evenkeel_store::{Held, Key};

use super::{Args, Id};
use crate::config::Settings;
use crate::reply::Reply;
use crate::server::Server;
use crate::session::Session;

/// See the module's text. The fields are separate, so that a value borrowed from `held` can be written to `reply`.
pub struct Call<'a, 'h> {
    pub id: Id,
    pub args: Args<'a>,
    /// The keys that the row declares, in order.
    pub keys: &'a [Key<'a>],
    /// What the row's reach says: the keys' slots, nothing, or everything.
    pub held: &'a mut Held<'h>,
    pub reply: &'a mut Reply,
    pub session: &'a mut Session,
    pub server: &'a Arc<Server>,
    pub settings: &'a Arc<Settings>,
    /// The worker that runs this.
    pub worker: usize,
}

impl Call<'_, '_> {
    /// The time by which this command goes, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.held.seat.now_ms
    }

    /// The row's name in lower case, for error texts.
    pub fn name(&self) -> &'static str {
        super::table::table().row(self.id).name
    }
}

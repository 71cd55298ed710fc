//! A call of a command on the session or on the server.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::server::Server;
use evenkeel_client::session::Session;
use evenkeel_command::Call;
use evenkeel_command::call::HasCall;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Done;

/// The function that runs such a command.
pub(crate) type ServerHandler = fn(&mut ServerCall<'_, '_>) -> Done;

/// A call with its session and the server. The fields are separate, so that values of the session can be
/// written to `base.reply`.
pub(crate) struct ServerCall<'a, 'h> {
    pub(crate) base: Call<'a, 'h>,
    pub(crate) session: &'a mut Session,
    pub(crate) server: &'a Arc<Server>,
    /// Number of the thread that runs the command, for its statistics.
    pub(crate) worker: usize,
}

impl ServerCall<'_, '_> {
    /// The error for a subcommand of `container` with a wrong number of arguments.
    pub(crate) fn wrong_form(&self, container: &str) -> Error {
        let text = b"ERR unknown subcommand or wrong number of arguments for '";
        let name = self.base.args.quoted(1, 128);
        Error::Bytes([&text[..], name, b"'. Try ", container.as_bytes(), b" HELP."].concat())
    }
}

impl<'a, 'h> Deref for ServerCall<'a, 'h> {
    type Target = Call<'a, 'h>;

    fn deref(&self) -> &Call<'a, 'h> {
        &self.base
    }
}

impl<'a, 'h> DerefMut for ServerCall<'a, 'h> {
    fn deref_mut(&mut self) -> &mut Call<'a, 'h> {
        &mut self.base
    }
}

impl<'a, 'h> HasCall<'a, 'h> for ServerCall<'a, 'h> {
    fn call(&mut self) -> &mut Call<'a, 'h> {
        &mut self.base
    }
}

//! The body of a reply while it is sent.
//!
//! It is handed over in pieces, so that a connection counts as busy until nearly all of it has left, however
//! slowly its client reads, and as stalled once no piece has left for long.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

use crate::connections::Sending;

const PIECE_MAX: usize = 64 << 10;

/// The content of a reply.
pub(crate) enum Content {
    Whole(Bytes),
    /// Pieces that come until the sender is dropped.
    Events(Receiver<Bytes>),
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content::Whole(bytes)
    }
}

/// See the module's text.
pub(crate) struct SentBody {
    pub(crate) content: Content,
    pub(crate) sending: Sending,
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut SentBody>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let piece = match &mut this.content {
            Content::Whole(rest) if rest.is_empty() => None,
            Content::Whole(rest) => Some(rest.split_to(rest.len().min(PIECE_MAX))),
            Content::Events(receiver) => ready!(receiver.poll_recv(context)),
        };
        this.sending.record_progress();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(rest) => SizeHint::with_exact(rest.len() as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

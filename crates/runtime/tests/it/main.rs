//! Models of the mailbox and of the claim: loom runs every interleaving of their threads.

mod claim;
mod mailbox;
mod sync;

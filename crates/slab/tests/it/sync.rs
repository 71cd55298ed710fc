//! The `crate::sync` of the file that is compiled here: loom's primitives.

pub(crate) use loom::sync::atomic;

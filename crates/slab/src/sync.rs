//! Synchronization primitives of [`crate::remote`]: a separate module, so that the model in `tests/it` can
//! compile that file against loom's counterparts.

pub(crate) use std::sync::atomic;

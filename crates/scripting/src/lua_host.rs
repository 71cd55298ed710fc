//! The running script as the functions of crate `lua` see it.

use evenkeel_lua::Host;
use evenkeel_lua::call::{Called, Stack};

use super::{api, run};

pub(super) struct LuaHost;

// SAFETY: the bytes of a result belong to the thread's run, or are a constant. The run changes them in its
// next command, and outlives the script. `run::call` catches panics.
unsafe impl Host for LuaHost {
    fn call(stack: &Stack) -> Called {
        run::call(stack)
    }

    fn may_continue() -> bool {
        run::look_around() && api::load_in_time()
    }
}

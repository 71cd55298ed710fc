//! Schedules the checks of a running script: whether it is to end, is slow, or has to be announced.
//!
//! Lua calls back after a number of instructions. Most take some nanoseconds, but an instruction that makes a
//! text of megabytes takes milliseconds, and thousands of these between two checks would make a script that
//! nothing can end. So the number follows the time that the last instructions took.

use std::cell::Cell;

use evenkeel_lua::Host;
use mlua::{HookTriggers, Lua, VmState};

use super::lua_host::LuaHost;
use evenkeel_runtime::clock::{self, Ticks};

/// Instructions between two checks: some 5 us, of which the check is less than a hundredth.
const EVERY_MAX: u32 = 1_000;

/// Microseconds between two checks beyond which the interval shrinks, and its target then.
const GAP_MAX_US: u64 = 2_000;
const GAP_US: u64 = 500;

/// Microseconds between two checks below which the interval grows again.
const GAP_MIN_US: u64 = 100;

thread_local! {
    /// When this thread's script was last checked, or began.
    static LOOKED: Cell<Ticks> = const { Cell::new(0) };
}

/// Starts the clock for a script, or for the code of a library.
pub(super) fn begin() {
    LOOKED.set(clock::ticks());
}

/// Checks running scripts at the usual interval from now on.
pub(super) fn watch(lua: &Lua) -> mlua::Result<()> {
    look_every(lua, EVERY_MAX)
}

fn look_every(lua: &Lua, every: u32) -> mlua::Result<()> {
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(every), move |lua, _| {
        let now = clock::ticks();
        let gap = now.saturating_sub(LOOKED.replace(now));
        if !LuaHost::may_continue() {
            // From here on each instruction ends its function: no `pcall` survives.
            look_every(lua, 1)?;
            return Err(mlua::Error::RuntimeError("the script was killed".into()));
        }
        let next = next(every, gap / clock::ticks_per_us());
        if next != every {
            look_every(lua, next)?;
        }
        Ok(VmState::Continue)
    })
}

/// Returns the instructions until the next check, after the last `every` took `gap_us`.
fn next(every: u32, gap_us: u64) -> u32 {
    match gap_us {
        ..GAP_MIN_US => every.saturating_mul(8).min(EVERY_MAX),
        GAP_MIN_US..=GAP_MAX_US => every,
        _ => (u64::from(every) * GAP_US / gap_us).max(1) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the interval that settles in for instructions of `ns` each.
    fn settled(ns: u64) -> u32 {
        (0..20).fold(EVERY_MAX, |every, _| next(every, u64::from(every) * ns / 1_000))
    }

    #[test]
    fn check_interval_follows_instruction_time() {
        assert_eq!(settled(5), EVERY_MAX);
        assert_eq!(settled(20), EVERY_MAX);
        for (ns, gap_us) in [(1_000, 100..=2_000), (50_000, 100..=2_000), (5_000_000, 5_000..=5_000)] {
            let gap = u64::from(settled(ns)) * ns / 1_000;
            assert!(gap_us.contains(&gap), "{ns}: {gap}");
        }
        assert_eq!((0..10).fold(1, |every, _| next(every, 1)), EVERY_MAX, "after the slow ones");
    }
}

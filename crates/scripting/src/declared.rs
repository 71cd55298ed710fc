//! What a script declares of itself, before it runs: the flags of its shebang line, or of its function.

use super::machine;
use super::{Scripts, Sha};
use evenkeel_command::{Args, Flags, LockScope, ScriptRef, Spec};
use evenkeel_lua::shebang::{self, ScriptFlags};

/// Whether a script is known to use more keys than its call declares.
pub fn needs_all(script: ScriptRef, args: &Args<'_>, scripts: &Scripts) -> bool {
    let name = args.at(1);
    let known = match script {
        ScriptRef::Text => machine::with(scripts, |machine| machine.text_reaches_outside(name)),
        ScriptRef::Digest => machine::with(scripts, |machine| machine.name_reaches_outside(name)),
        ScriptRef::Function => {
            machine::with(scripts, |machine| machine.function_reaches_outside(scripts, name))
        }
    };
    known.unwrap_or(false)
}

/// Returns the flags that the script of a call declares, if the call runs a script that exists and declares
/// any.
fn flags(spec: &Spec, args: &Args<'_>, scripts: &Scripts) -> Option<ScriptFlags> {
    let LockScope::Script(script) = spec.lock_scope else { return None };
    let name = args.get(1)?;
    match script {
        ScriptRef::Text => shebang::of_script(name).ok()?,
        ScriptRef::Digest => {
            let sha = Sha::try_from(name.to_ascii_lowercase()).ok()?;
            scripts.find(&sha)?.flags
        }
        ScriptRef::Function => Some(scripts.function(name)?.1.flags),
    }
}

/// Whether a call of a command that may write is known not to: its script declares so.
#[cold]
pub fn only_reads(spec: &Spec, args: &Args<'_>, scripts: &Scripts) -> bool {
    flags(spec, args, scripts).is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES))
}

/// Returns the flags of a call that is queued: the row's, adjusted to the flags that its script declares.
pub fn flags_of_call(spec: &Spec, args: &Args<'_>, scripts: &Scripts) -> Flags {
    let Some(declared) = flags(spec, args, scripts) else { return spec.flags };
    let stale_allowed = declared.has(ScriptFlags::ALLOW_STALE);
    let flags = if stale_allowed { spec.flags } else { spec.flags.without(Flags::STALE) };
    match (declared.has(ScriptFlags::NO_WRITES), declared.has(ScriptFlags::ALLOW_OOM)) {
        (true, _) => flags,
        (false, true) => flags.with(Flags::WRITE),
        (false, false) => flags.with(Flags::WRITE).with(Flags::DENYOOM),
    }
}

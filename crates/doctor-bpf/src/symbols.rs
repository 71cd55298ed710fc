//! Names for addresses, while the process still runs.
//!
//! Stripped binaries keep the symbols that other files link against, so most of a server's functions have
//! names. File-private functions have none. They are named by their module and the start of their .eh_frame
//! entry, so that all addresses of a function stay together. The frame also carries the reason for the
//! missing name.

use std::collections::HashMap;

use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::{MaybeDefault, Pid};

use crate::tables::Tables;
use crate::{Frame, KERNEL};

/// Symbolises each address once, in a single call of the library.
pub(crate) struct Names<'a> {
    pid: i32,
    tables: &'a Tables,
}

impl<'a> Names<'a> {
    pub(crate) fn new(pid: i32, tables: &'a Tables) -> Names<'a> {
        Names { pid, tables }
    }

    /// Names addresses in the process. Pass return addresses minus one, because they follow the call.
    pub(crate) fn user(&self, addresses: &[u64]) -> HashMap<u64, Frame> {
        let symbolizer = Symbolizer::builder().enable_demangling(false).enable_code_info(false).build();
        let mut process = Process::new(Pid::from(self.pid.cast_unsigned()));
        process.debug_syms = false;
        // map_files also reaches files that were replaced, or have another path in a container. It needs
        // privileges.
        process.map_files = self.may_follow_map_files();
        let found = symbolizer.symbolize(&Source::Process(process), Input::AbsAddr(addresses));
        let found = found.unwrap_or_default();
        let name = |(index, &address): (usize, &u64)| {
            let frame = match found.get(index) {
                Some(Symbolized::Sym(symbol)) => Frame {
                    name: demangle(&symbol.name),
                    module: symbol
                        .module
                        .as_ref()
                        .map_or_else(|| self.module(address), |m| file_name(&m.to_string_lossy())),
                    unnamed: None,
                },
                Some(Symbolized::Unknown(reason)) => self.unnamed(address, &reason.to_string()),
                None => self.unnamed(address, "the process ended before names could be read"),
            };
            (address, frame)
        };
        addresses.iter().enumerate().map(name).collect()
    }

    pub(crate) fn kernel(&self, addresses: &[u64]) -> HashMap<u64, Frame> {
        let symbolizer = Symbolizer::builder().enable_demangling(false).enable_code_info(false).build();
        let kernel = Kernel { vmlinux: MaybeDefault::None, debug_syms: false, ..Kernel::default() };
        let found =
            symbolizer.symbolize(&Source::Kernel(kernel), Input::AbsAddr(addresses)).unwrap_or_default();
        let name = |(index, &address): (usize, &u64)| {
            let (name, unnamed) = match found.get(index) {
                Some(Symbolized::Sym(symbol)) => (symbol.name.to_string(), None),
                Some(Symbolized::Unknown(reason)) => (format!("{address:#x}"), Some(reason.to_string())),
                None => (format!("{address:#x}"), Some("/proc/kallsyms shows no addresses".to_string())),
            };
            (address, Frame { name, module: KERNEL.to_string(), unnamed })
        };
        addresses.iter().enumerate().map(name).collect()
    }

    fn may_follow_map_files(&self) -> bool {
        let mut mappings = self.tables.mappings.iter().zip(&self.tables.modules);
        let file = mappings.find(|(_, module)| !module.name.is_empty() && !module.name.starts_with('['));
        file.is_some_and(|(mapping, _)| {
            let path = format!("/proc/{}/map_files/{:x}-{:x}", self.pid, mapping.start, mapping.end);
            std::fs::metadata(path).is_ok()
        })
    }

    fn module(&self, address: u64) -> String {
        self.find(address).map_or_else(|| "?".to_string(), |index| self.tables.modules[index].name.clone())
    }

    fn find(&self, address: u64) -> Option<usize> {
        let mappings = &self.tables.mappings;
        let index = mappings.partition_point(|mapping| mapping.start <= address).checked_sub(1)?;
        (address < mappings[index].end).then_some(index)
    }

    fn unnamed(&self, address: u64, reason: &str) -> Frame {
        let Some(index) = self.find(address) else {
            return Frame {
                name: "?".to_string(),
                module: "?".to_string(),
                unnamed: Some("not mapped".to_string()),
            };
        };
        let module = &self.tables.modules[index];
        let in_file = address.wrapping_sub(self.tables.mappings[index].bias);
        let start = u32::try_from(in_file).ok().and_then(|in_file| {
            let at = module.starts.partition_point(|&start| start <= in_file).checked_sub(1)?;
            Some(u64::from(module.starts[at]))
        });
        let shown = if module.name.is_empty() { "code made at run time" } else { &module.name };
        Frame {
            name: format!("{shown}+{:#x}", start.unwrap_or(in_file)),
            module: shown.to_string(),
            unnamed: Some(reason.to_string()),
        }
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_string()
}

/// Demangles only mangled names: a C function may be named `w`, which a C++ demangler takes for a type.
pub(crate) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}"); // without the hash at its end
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(text) = symbol.demangle()
    {
        return text;
    }
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mangled_names_are_demangled() {
        assert_eq!(demangle("w"), "w");
        assert_eq!(demangle("call"), "call");
        assert_eq!(demangle("_ZN3foo3barEv"), "foo::bar()");
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
    }
}

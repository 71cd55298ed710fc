//! Compiles the BPF programs: each `src/bpf/*.bpf.c` becomes an object that the library embeds.
//!
//! Only clang compiles them well: $CLANG, else the newest of Debian's, else plain `clang`. libbpf's headers
//! come from the crate that also links libbpf, so both have the same version.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const PROGRAMS: &[&str] = &["doctor.bpf", "probe.bpf"];
const HEADERS: &[&str] = &["kernel.h", "shared.h", "unwind.h"];
const CLANGS: &[&str] = &["clang-19", "clang-18", "clang-17", "clang-16", "clang", "clang-14"];

fn main() {
    for header in HEADERS {
        println!("cargo:rerun-if-changed=src/bpf/{header}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it for build scripts"));
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let clang = clang();
    for program in PROGRAMS {
        let source = format!("src/bpf/{program}.c");
        println!("cargo:rerun-if-changed={source}");
        let status = Command::new(&clang)
            .args(["-g", "-O2", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86", "-Wall", "-Werror"])
            .arg("-Wno-missing-declarations") // BPF_PROG declares functions inside expressions
            .args(["-I", &headers, "-c", &source, "-o"])
            .arg(folder.join(format!("{program}.o")))
            .status();
        let status = status.unwrap_or_else(|error| panic!("{clang}: {error}"));
        assert!(status.success(), "{clang} could not compile {source}");
    }
}

fn clang() -> String {
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let works = |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    match CLANGS.iter().find(works) {
        Some(name) => (*name).to_string(),
        None => panic!("no clang: `scripts/setup doctor` installs it, or set CLANG"),
    }
}

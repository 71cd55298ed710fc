//! Compiles what has to know the allocator's own structures, against the headers of the crate that also links it.

use std::env;

fn main() {
    const SOURCE: &str = "src/allocator/heap.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    let headers = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys says where its headers are");
    cc::Build::new()
        .file(SOURCE)
        .include(headers)
        .define("MI_DEBUG", "0") // as that crate defines it: the structures depend on it, and a test sees that they fit
        .warnings(false)
        .compile("evenkeel_heap");
}

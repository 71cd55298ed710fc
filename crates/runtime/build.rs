//! Compiles the C code that reads the allocator's own structures, against the headers of the crate that
//! links the allocator.

use std::env;

fn main() {
    const SOURCE: &str = "src/allocator/heap.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    let headers = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys says where its headers are");
    cc::Build::new()
        .file(SOURCE)
        .include(headers)
        // As that crate defines it: the layout depends on it. A test compares the layouts.
        .define("MI_DEBUG", "0")
        .warnings(false)
        .compile("evenkeel_heap");
}

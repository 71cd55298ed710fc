//! File names with wildcards, for `include`.

use evenkeel_runtime::glob;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Returns the files that match a path with wildcards, ordered by name; a path without wildcards is returned
/// unchanged, even if no such file exists. As in a shell, only a pattern that begins with a dot matches a
/// name that does. A relative path starts at `folder`, whose own name is no pattern.
pub(super) fn expand(folder: &Path, path: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for component in path.components() {
        found = found.into_iter().flat_map(|base| step(&base, component)).collect();
    }
    found
}

/// Returns the paths that result from another component below `base`.
fn step(base: &Path, component: Component<'_>) -> Vec<PathBuf> {
    let pattern = component.as_os_str().as_bytes();
    if !glob::is_pattern(pattern) {
        return vec![base.join(component)];
    }
    let fits = |name: &[u8]| {
        glob::matches(pattern, name, false) && (!name.starts_with(b".") || pattern.starts_with(b"."))
    };
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name()).filter(|name| fits(name.as_bytes())).collect();
    names.sort();
    names.into_iter().map(|name| base.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::scratch::Scratch;

    #[test]
    fn wildcards_in_any_component() {
        let scratch = Scratch::new();
        for name in ["x1/b.conf", "x1/a.conf", "x2/c.conf", "x2/.hidden.conf", "y/d.conf"] {
            scratch.write(name, "");
        }
        let expand = |pattern: &str| -> Vec<String> {
            let found = expand(Path::new("/"), &scratch.path.join(pattern));
            assert_eq!(found, expand(&scratch.path, Path::new(pattern)));
            let inside =
                |path: PathBuf| path.strip_prefix(&scratch.path).expect("inside").display().to_string();
            found.into_iter().map(inside).collect()
        };
        assert_eq!(expand("x?/*.conf"), ["x1/a.conf", "x1/b.conf", "x2/c.conf"]);
        assert_eq!(expand("x2/.*"), ["x2/.hidden.conf"]);
        assert_eq!(expand("x1/none"), ["x1/none"]);
        assert_eq!(expand("none*/a"), Vec::<String>::new());
    }
}

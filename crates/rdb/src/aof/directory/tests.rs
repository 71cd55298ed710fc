use std::io::Write;

use super::*;
use crate::aof::scratch::Root;
use crate::aof::{Flaw, truncate};

impl Root {
    fn open(&self) -> Result<Directory> {
        Directory::open(&self.0, OsStr::new("dir"), OsStr::new("a.aof"))
    }

    fn refused(&self) -> String {
        let before = self.listing();
        let text = self.open().expect_err("it is broken").to_string();
        assert_eq!(self.listing(), before, "nothing may change");
        text.replace(&format!("{}/", self.0.display()), "")
    }

    fn manifest(&self) -> String {
        fs::read_to_string(self.0.join("dir/a.aof.manifest")).expect("there is a manifest")
    }
}

const MANIFEST: &str = "dir/a.aof.manifest";

fn names(directory: &Directory) -> Vec<(String, u64, bool)> {
    let parts = directory.parts().expect("all are there");
    let name = |part: &Part| part.path.file_name().expect("it has one").to_string_lossy().into_owned();
    parts.iter().map(|part| (name(part), part.size, part.last)).collect()
}

/// A thread stuck in a slow disk goes on to write to the draft that was given up, not to the new draft.
#[test]
fn remains_of_an_earlier_draft_are_not_written_to() {
    let root = Root::with::<&str>(&[]);
    let mut directory = root.open().expect("nothing is there");
    let mut left = directory.draft_base().expect("a draft");
    directory.draft_base().expect("a draft").write_all(b"new").expect("written");
    left.write_all(b"what hung").expect("written");
    directory.install(true, Since::Number(1)).expect("installed");
    assert_eq!(names(&directory)[0].1, 3);
}

#[test]
fn an_empty_directory_gets_a_base_and_incremental_files() {
    let root = Root::with::<&str>(&[]);
    let mut directory = root.open().expect("nothing is there");
    assert_eq!((directory.stored_data(), names(&directory)), (StoredData::Nothing, vec![]));
    assert!(root.listing().is_empty(), "opening changes nothing");

    directory.draft_base().expect("a draft").write_all(b"base").expect("written");
    directory.install(true, Since::Number(1)).expect("installed");
    let mut file = directory.resume().expect("opened");
    file.write_all(b"one").expect("written");
    assert_eq!(root.manifest(), "file a.aof.1.base.rdb seq 1 type b\nfile a.aof.1.incr.aof seq 1 type i\n");

    // A rewrite: from now on commands go to the next file, and the new base contains all earlier data.
    file.sync_data().expect("synced");
    let mut file = directory.next_incremental().expect("opened");
    file.write_all(b"two").expect("written");
    directory.draft_base().expect("a draft").write_all(b"base and one").expect("written");
    directory.install(false, Since::Number(2)).expect("installed");
    let listed = "file a.aof.2.base.aof seq 2 type b\nfile a.aof.1.incr.aof seq 1 type h\n\
                  file a.aof.1.base.rdb seq 1 type h\nfile a.aof.2.incr.aof seq 2 type i\n";
    assert_eq!(root.manifest(), listed);
    let again = root.open().expect("whole");
    assert_eq!(again.manifest(), directory.manifest());
    let expected = [("a.aof.2.base.aof".to_owned(), 12, false), ("a.aof.2.incr.aof".to_owned(), 3, true)];
    assert_eq!((again.stored_data(), names(&again)), (StoredData::Parts, expected.to_vec()));

    assert_eq!(directory.remove_history().expect("removed"), 2);
    assert_eq!(directory.remove_history().expect("nothing to do"), 0);
    let files: Vec<String> = root.listing().into_iter().map(|(name, _)| name).collect();
    assert_eq!(files, ["dir/a.aof.2.base.aof", "dir/a.aof.2.incr.aof", MANIFEST]);
    // Later starts append to the same file.
    root.open().expect("whole").resume().expect("opened").write_all(b"!").expect("written");
    assert_eq!(root.listing()[1].1, "two!");
}

#[test]
fn a_base_begun_during_writes_replaces_all_parts() {
    let manifest = "file a.aof.3.base.rdb seq 3 type b\nfile a.aof.5.incr.aof seq 5 type i\n";
    let root = Root::with(&[
        (MANIFEST, manifest),
        ("dir/a.aof.3.base.rdb", "stale"),
        ("dir/a.aof.5.incr.aof", "stale"),
    ]);
    let mut directory = root.open().expect("whole");
    let mut incremental = directory.draft_incremental().expect("a draft");
    directory.draft_base().expect("a draft").write_all(b"new").expect("written");
    incremental.write_all(b"first").expect("written");
    directory.install(true, Since::Draft).expect("installed");
    incremental.write_all(b", second").expect("written");
    directory.remove_history().expect("removed");
    let listing = root.listing();
    assert_eq!(listing[0], ("dir/a.aof.4.base.rdb".into(), "new".into()));
    assert_eq!(listing[1], ("dir/a.aof.6.incr.aof".into(), "first, second".into()));
    assert_eq!(listing.len(), 3);
}

/// The first incremental file, too, is continued at its end after a truncation, without a hole.
#[test]
fn every_incremental_file_is_appended_to() {
    let root = Root::with::<&str>(&[]);
    let mut directory = root.open().expect("nothing");
    for _ in 0..2 {
        directory.draft_incremental().expect("a draft").write_all(b"of an earlier attempt").expect("written");
    }
    let mut first = directory.draft_incremental().expect("a draft");
    directory.draft_base().expect("a draft");
    first.write_all(b"command, torn").expect("written");
    directory.install(true, Since::Draft).expect("installed");
    let second = directory.next_incremental().expect("listed");
    let resumed = directory.resume().expect("opened");
    for (mut file, name) in [(first, "1"), (second, "2"), (resumed, "2")] {
        let path = root.0.join(format!("dir/a.aof.{name}.incr.aof"));
        fs::write(&path, "command").expect("written");
        file.write_all(b", another").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "command, another");
    }
}

/// A crash has left the entries of removed files: their numbers are not used again.
#[test]
fn a_number_that_history_has_is_not_used_again() {
    let manifest = "file a.aof.1.base.rdb seq 1 type b\nfile a.aof.5.base.rdb seq 5 type h\n\
                    file a.aof.3.incr.aof seq 3 type h\n";
    for since in [Since::Number(4), Since::Draft] {
        let root = Root::with(&[(MANIFEST, manifest), ("dir/a.aof.1.base.rdb", "base")]);
        let mut directory = root.open().expect("whole");
        if since == Since::Draft {
            directory.draft_incremental().expect("a draft");
        } else {
            directory.resume().expect("a new one is begun");
        }
        directory.draft_base().expect("a draft");
        directory.install(true, since).expect("installed");
        directory.remove_history().expect("removed");
        assert_eq!(
            root.manifest(),
            "file a.aof.6.base.rdb seq 6 type b\nfile a.aof.4.incr.aof seq 4 type i\n"
        );
    }
}

#[test]
fn an_old_file_is_moved_in_even_if_a_crash_interrupts_it() {
    for begun in [&[][..], &[(MANIFEST, "file a.aof seq 1 type b\n")][..]] {
        let root = Root::with(&[&[("a.aof", "old")], begun].concat());
        let mut directory = root.open().expect("whole");
        assert_eq!(
            (directory.stored_data(), names(&directory)),
            (StoredData::OldFile, vec![("a.aof".into(), 3, true)])
        );
        directory.adopt().expect("moved");
        directory.resume().expect("opened");
        let manifest = "file a.aof seq 1 type b\nfile a.aof.1.incr.aof seq 1 type i\n";
        let expected = [("dir/a.aof", "old"), ("dir/a.aof.1.incr.aof", ""), (MANIFEST, manifest)];
        assert_eq!(root.listing(), expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
        // An empty part follows, but the end of this part can still be torn.
        assert_eq!(names(&root.open().expect("whole"))[0], ("a.aof".to_owned(), 3, true));
    }
}

#[test]
fn an_old_file_beside_parts_is_ignored() {
    let base = (MANIFEST, "file a.aof seq 1 type b\n");
    let root = Root::with(&[("a.aof", "older"), base, ("dir/a.aof", "old")]);
    let mut directory = root.open().expect("whole");
    assert_eq!(directory.stored_data(), StoredData::Parts);
    directory.adopt().expect("nothing to do");
    assert_eq!(root.listing()[0], ("a.aof".into(), "older".into()));
}

#[test]
fn incomplete_directories_are_refused_and_unchanged() {
    let part = ("dir/a.aof.1.incr.aof", "x");
    let listed = (MANIFEST, "file a.aof.1.incr.aof seq 1 type i\n");
    let refused = |files: &[(&str, &str)]| Root::with(files).refused();
    let missing = "The AOF file dir/a.aof.1.incr.aof is listed in the manifest: No such file or directory";
    assert_eq!(refused(&[listed]), missing);
    let text = "dir/a.aof.manifest is missing, but there is dir/a.aof.1.incr.aof: without a manifest nobody \
                knows which files are the data";
    assert_eq!(refused(&[part]), text);
    assert_eq!(refused(&[(MANIFEST, ""), part]), "dir/a.aof.manifest: Found an empty AOF manifest");
    let text = "dir/a.aof.manifest, line 2, >>> 'file b': Invalid AOF manifest file format";
    assert_eq!(refused(&[(MANIFEST, "#\nfile b\n"), part]), text);
    assert_eq!(
        refused(&[listed, ("dir/a.aof.1.incr.aof/x", "")]),
        "dir/a.aof.1.incr.aof is listed in the manifest, but is not a file"
    );
    assert!(refused(&[("dir", "a file")]).starts_with("Can't open dir/a.aof.manifest: "));
    assert!(refused(&[("dir/a.aof.manifest/x", "")]).starts_with("Can't read dir/a.aof.manifest: "));
    let root = Root::with::<&str>(&[]);
    assert!(Directory::open(&root.0, OsStr::new("dir"), OsStr::new("a/b")).is_err());
}

#[test]
fn existing_files_are_not_overwritten() {
    let root = Root::with(&[
        (MANIFEST, "# no data yet\n"),
        ("dir/a.aof.1.incr.aof", "x"),
        ("dir/a.aof.1.base.aof", "y"),
    ]);
    let mut directory = root.open().expect("a manifest says that nothing is there");
    assert_eq!(directory.strays().expect("read").len(), 2);
    directory.draft_base().expect("a draft");
    directory.install(true, Since::Number(1)).expect("installed");
    directory.resume().expect("opened");
    assert_eq!(root.manifest(), "file a.aof.2.base.rdb seq 2 type b\nfile a.aof.2.incr.aof seq 2 type i\n");
    assert_eq!(root.listing()[0], ("dir/a.aof.1.base.aof".into(), "y".into()));

    let root = Root::with(&[("a.aof", "old"), (MANIFEST, "# no data yet\n"), ("dir/a.aof", "x")]);
    let mut directory = root.open().expect("whole");
    assert!(directory.adopt().is_err());
    assert_eq!(root.listing()[0], ("a.aof".into(), "old".into()));
    assert_eq!(root.listing()[1], ("dir/a.aof".into(), "x".into()));
}

#[test]
fn a_crash_at_the_first_start_is_not_a_lost_manifest() {
    let root = Root::with::<&str>(&[]);
    let directory = root.open().expect("nothing is there");
    directory.draft_base().expect("a draft");
    // The state between the rename and the manifest in `install`.
    fs::rename(directory.draft_base_path(), root.0.join("dir/a.aof.1.base.rdb")).expect("renamed");
    assert_eq!(root.open().expect("there are no data").stored_data(), StoredData::Nothing);
}

#[test]
fn names_of_all_kinds_are_kept() {
    for name in [&b" file seq \n\n.aof "[..], b"\xff\xfe", b"'\"\\", b"-"] {
        let root = Root::with::<&str>(&[]);
        let open = || Directory::open(&root.0, OsStr::new("dir"), OsStr::from_bytes(name)).expect("whole");
        let mut directory = open();
        directory.resume().expect("opened");
        assert_eq!(open().manifest(), directory.manifest());
        assert_eq!(open().parts().expect("whole").len(), 1);
        assert!(open().strays().expect("read").is_empty());
    }
    // Written by a server that does not quote such bytes.
    let long = vec![0xff; 255];
    let manifest = [b"file ", &long[..], b" seq 1 type i\n"].concat();
    let root = Root::with(&[(MANIFEST, "")]);
    fs::write(root.0.join(MANIFEST), &manifest).expect("written");
    fs::write(root.0.join("dir").join(OsStr::from_bytes(&long)), "").expect("written");
    let error = root.open().expect("whole").next_incremental().expect_err("no line can hold it in quotes");
    assert!(matches!(error.problem, Problem::Name), "{error}");
    assert_eq!(fs::read(root.0.join(MANIFEST)).expect("it is there"), manifest);
    assert_eq!(fs::read_dir(root.0.join("dir")).expect("it is there").count(), 2);
}

#[test]
fn a_file_is_only_ever_shortened() {
    let root = Root::with(&[("f", "12345")]);
    let path = root.0.join("f");
    truncate(&path, 3).expect("truncated");
    truncate(&path, 3).expect("nothing to do");
    assert!(truncate(&path, 4).is_err());
    assert_eq!(root.listing(), [("f".to_owned(), "123".to_owned())]);
    assert!(truncate(&root.0.join("g"), 0).is_err());
}

#[test]
fn the_flaw_of_a_manifest_can_be_asked_for() {
    let root = Root::with(&[(MANIFEST, "file a seq 1 type x\n")]);
    match root.open().expect_err("it is broken").problem {
        Problem::Manifest(error) => assert_eq!((error.line, error.flaw), (1, Flaw::UnknownType)),
        other => panic!("{other:?}"),
    }
}

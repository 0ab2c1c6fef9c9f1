//! The shared libraries of a build with `dynamic-backends`.

use std::fs;

/// The loader looks for libraries in the folders of the run path. An empty entry is the current folder, in which
/// anybody may have put libraries.
#[test]
fn every_library_looks_in_its_own_folder_and_none_in_the_current_folder() {
    let mut count = 0;
    for entry in fs::read_dir(env!("LLAMA_SYS_BACKEND_DIR")).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().unwrap().contains(".so") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let run_path = bytes.split(|byte| *byte == 0).find(|text| text.starts_with(b"$ORIGIN")).unwrap();
        let run_path = std::str::from_utf8(run_path).unwrap();
        let mut folders = run_path.split(':');
        assert_eq!(folders.next(), Some("$ORIGIN"), "{}", path.display());
        assert!(folders.all(|folder| folder.starts_with('/')), "{}: {run_path}", path.display());
        count += 1;
    }
    assert!(count > 3, "{count}");
}

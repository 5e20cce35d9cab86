//! What may have happened to the cache since the last start, and to the disk under it.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use tempfile::TempDir;

/// An unpacked model, and its directory.
fn unpacked() -> (TempDir, PathBuf) {
    let cache = tempfile::tempdir().unwrap();
    let directory = unpack(cache.path()).unwrap();
    (cache, directory)
}

/// Whether the model is there and nothing that could be taken for a part of it.
fn check(directory: &Path) {
    for (name, content) in FILES {
        assert!(fs::read(directory.join(name)).unwrap() == content, "{name}");
    }
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| !name.starts_with('.')).count(), FILES.len());
}

/// The names in a cache, without the digest.
fn names(cache: &Path, directory: &Path) -> Vec<String> {
    let model = directory.file_name().unwrap().to_str().unwrap();
    let names = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.map(|name| name.replace(model, "model")).collect();
    names.sort();
    names
}

#[test]
fn unpacks_once_and_whole() {
    let (cache, directory) = unpacked();
    check(&directory);
    let weights = fs::metadata(directory.join("model.safetensors")).unwrap();
    assert_eq!(unpack(cache.path()).unwrap(), directory);
    let again = fs::metadata(directory.join("model.safetensors")).unwrap();
    assert_eq!(again.modified().unwrap(), weights.modified().unwrap());
    assert_eq!(names(cache.path(), &directory), ["model"]);
}

#[test]
fn whatever_is_damaged_is_repaired() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(100).unwrap()),
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("another bit", |path| {
            let mut content = fs::read(path).unwrap();
            let middle = content.len() / 2;
            content[middle] ^= 1;
            fs::write(path, content).unwrap();
        }),
        ("longer", |path| fs::write(path, [&fs::read(path).unwrap()[..], b" "].concat()).unwrap()),
        ("a link to nothing", |path| {
            fs::remove_file(path).unwrap();
            symlink("nothing", path).unwrap();
        }),
    ];
    let (cache, directory) = unpacked();
    for (what, damage) in damages {
        for (name, _) in FILES {
            damage(&directory.join(name));
            assert_eq!(unpack(cache.path()).unwrap(), directory, "{what} {name}");
            check(&directory);
        }
    }
    assert_eq!(names(cache.path(), &directory), ["model"]);
}

#[test]
fn what_is_in_the_way_is_named() {
    let (cache, directory) = unpacked();
    let config = directory.join("config.json");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    let error = unpack(cache.path()).unwrap_err().to_string();
    assert!(error.contains(&config.display().to_string()) && error.contains("remove what is in the way"), "{error}");
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "no directory").unwrap();
    let error = unpack(cache.path()).unwrap_err().to_string();
    assert!(error.contains(&directory.display().to_string()), "{error}");
    assert_eq!(names(cache.path(), &directory), ["model"]);
}

#[test]
fn a_repair_leaves_files_in_use_alone() {
    let (cache, directory) = unpacked();
    let path = directory.join("model.safetensors");
    fs::write(&path, "damaged").unwrap();
    let in_use = File::open(&path).unwrap();
    check(&unpack(cache.path()).unwrap());
    assert_eq!(io::read_to_string(in_use).unwrap(), "damaged");
}

#[test]
fn what_is_not_part_of_the_model_is_moved_aside() {
    let (cache, directory) = unpacked();
    fs::write(directory.join("model.safetensors.index.json"), "{}").unwrap();
    fs::write(directory.join(".DS_Store"), "").unwrap();
    check(&unpack(cache.path()).unwrap());
    assert_eq!(names(cache.path(), &directory), ["model", "model.found-model.safetensors.index.json"]);
    assert!(directory.join(".DS_Store").exists());
}

#[test]
fn eight_starts_at_once_on_a_damaged_cache_all_work() {
    let (cache, directory) = unpacked();
    for round in 0..10 {
        match round % 3 {
            0 => fs::remove_dir_all(&directory).unwrap(),
            1 => fs::write(directory.join("model.safetensors"), "damaged").unwrap(),
            _ => {
                fs::remove_file(directory.join("tokenizer.json")).unwrap();
                fs::write(directory.join("tekken.json"), "{}").unwrap();
            }
        }
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // From here on nobody may take anything away again.
                scope.spawn(|| check(&unpack(cache.path()).unwrap()));
            }
        });
        assert!(
            names(cache.path(), &directory)
                .iter()
                .all(|name| ["model", "model.found-tekken.json"].contains(&&name[..]))
        );
    }
}

#[test]
fn what_a_stopped_process_left_is_removed_and_what_a_running_one_writes_is_not() {
    let (cache, directory) = unpacked();
    let of = |owner: &str| PathBuf::from(format!("{}.{owner}", directory.display()));
    for owner in ["1234", "1234-5"] {
        fs::create_dir(of(owner)).unwrap();
        fs::write(of(owner).join("model.safetensors"), "half").unwrap();
    }
    let running = Partial::new(cache.path(), &directory).unwrap();
    fs::create_dir(cache.path().join("demo-notes.txt")).unwrap();
    unpack(cache.path()).unwrap();
    let own = running.path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(running.path.exists() && !of("1234").exists() && !of("1234-5").exists(), "{own}");
    assert_eq!(names(cache.path(), &directory).len(), 3);
    drop(running);
    assert_eq!(names(cache.path(), &directory), ["demo-notes.txt", "model"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_used_if_it_is_right() {
    let (cache, directory) = unpacked();
    let allow = |mode| {
        for path in [cache.path(), &directory] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    allow(0o555);
    check(&unpack(cache.path()).unwrap());
    allow(0o755);
    fs::remove_file(directory.join("config.json")).unwrap();
    allow(0o555);
    match unpack(cache.path()) {
        Err(error) => assert!(error.to_string().contains(&cache.path().display().to_string()), "{error}"),
        // Permissions say nothing to root.
        Ok(_) => check(&directory),
    }
    allow(0o755);
    check(&unpack(cache.path()).unwrap());
}

//! How many threads this process should compute with. It knows no pool.

#[cfg(target_os = "macos")]
mod sysctl;

use std::collections::HashSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

#[cfg(target_os = "macos")]
use sysctl::value;

/// One thread per physical core that this process may use, and no more than its container's share of processors: a core's second thread
/// competes with the first for the units that kernels keep busy. Of Apple's processors, one per core that is not an efficiency core: all share a
/// loop equally, and wait for the slowest.
pub(crate) fn to_compute_with() -> NonZeroUsize {
    let allowed = all();
    cores(Path::new("/")).or_else(|| fast_cores(value)).map_or(allowed, |cores| cores.min(allowed))
}

/// One thread per processor that this process may use, for work whose parts differ more than processors do.
pub(crate) fn all() -> NonZeroUsize {
    // Counts logical processors, and respects affinity and the quotas of both versions of cgroups.
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Other systems than macOS do not have what is asked for.
#[cfg(not(target_os = "macos"))]
fn value(_: &str) -> Option<Vec<u8>> {
    None
}

/// The cores of an Apple processor without its efficiency cores, by what macOS says under such a name. Which cores are not is a matter of their
/// names: M1 to M4 have `Performance` and `Efficiency`, M5 Pro and Max 5 or 6 called `Super` and 10 or 12 of `Performance`, which are in the second
/// place there.
fn fast_cores(value: impl Fn(&str) -> Option<Vec<u8>>) -> Option<NonZeroUsize> {
    let number = |name: &str| Some(u32::from_ne_bytes(value(name)?.try_into().ok()?) as usize);
    let of_level = |level: usize| {
        let is_slow = value(&format!("hw.perflevel{level}.name")).is_some_and(|name| name.starts_with(b"Efficiency"));
        if is_slow { Some(0) } else { number(&format!("hw.perflevel{level}.physicalcpu")) }
    };
    NonZeroUsize::new((0..number("hw.nperflevels")?).map(of_level).sum::<Option<usize>>()?)
}

/// The physical cores of the processors that this process may use, where the system under `root` is a Linux that tells.
fn cores(root: &Path) -> Option<NonZeroUsize> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let processors = root.join("sys/devices/system/cpu");
    let mut cores = HashSet::new();
    for processor in listed(allowed)? {
        let siblings = processors.join(format!("cpu{processor}/topology/thread_siblings_list"));
        // Processors that are off may be allowed, and have no such file.
        cores.extend(fs::read_to_string(siblings).ok());
    }
    NonZeroUsize::new(cores.len())
}

/// The numbers in a list like `0-3,8`.
fn listed(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system of four cores with two threads each, the second of core `c` being processor `c + 4`.
    fn system(name: &str, allowed: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("vllm-apple-cores-{}-{name}", std::process::id()));
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(root.join("proc/self/status"), format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n")).unwrap();
        for processor in 0..8 {
            let topology = root.join(format!("sys/devices/system/cpu/cpu{processor}/topology"));
            fs::create_dir_all(&topology).unwrap();
            let core = processor % 4;
            fs::write(topology.join("thread_siblings_list"), format!("{core},{}\n", core + 4)).unwrap();
        }
        root
    }

    #[test]
    fn threads_of_a_core_count_once_and_affinity_is_respected() {
        for (name, allowed, expected) in [
            ("all", "0-7", Some(4)),
            ("both", "1,5", Some(1)),
            ("some", "0-1,3,5", Some(3)),
            ("some that are off", "0-127", Some(4)),
            ("none that is on", "8-15", None),
            ("odd", "x", None),
        ] {
            let root = system(name, allowed);
            assert_eq!(cores(&root).map(NonZeroUsize::get), expected, "{allowed}");
            fs::remove_dir_all(root).unwrap();
        }
        assert_eq!(cores(Path::new("/nowhere")), None);
    }

    #[test]
    fn efficiency_cores_do_not_count() {
        let found = |levels: &[(&str, u32)]| {
            let value = |name: &str| {
                if name == "hw.nperflevels" {
                    return Some((levels.len() as u32).to_ne_bytes().to_vec());
                }
                let (level, what) = name.strip_prefix("hw.perflevel")?.split_once('.')?;
                let (called, cores) = levels.get(level.parse::<usize>().ok()?)?;
                match what {
                    "name" => Some(format!("{called}\0").into_bytes()),
                    "physicalcpu" => Some(cores.to_ne_bytes().to_vec()),
                    _ => None,
                }
            };
            fast_cores(value).map(NonZeroUsize::get)
        };
        for (what, levels, expected) in [
            ("M1", &[("Performance", 4), ("Efficiency", 4)][..], Some(4)),
            ("M3 Pro", &[("Performance", 6), ("Efficiency", 6)], Some(6)),
            ("M5 Max", &[("Super", 6), ("Performance", 12)], Some(18)),
            ("one with all three", &[("Super", 4), ("Performance", 8), ("Efficiency", 4)], Some(12)),
            ("one of a kind", &[("Standard", 8)], Some(8)),
            ("none", &[], None),
        ] {
            assert_eq!(found(levels), expected, "{what}");
        }
        assert_eq!(fast_cores(|_| None), None, "another system");
    }

    #[test]
    fn no_more_than_the_system_allows() {
        assert!(to_compute_with() <= thread::available_parallelism().unwrap());
    }
}

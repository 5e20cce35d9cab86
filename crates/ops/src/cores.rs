//! How many threads this process should compute with. It knows no pool.

use std::collections::HashSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

/// One thread per physical core that this process may use, and no more than its container's share of processors: a core's second thread
/// competes with the first for the units that kernels keep busy.
pub(crate) fn to_compute_with() -> NonZeroUsize {
    // Counts logical processors, and respects affinity and the quotas of both versions of cgroups.
    let allowed = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    cores(Path::new("/")).map_or(allowed, |cores| cores.min(allowed))
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
    fn no_more_than_the_system_allows() {
        assert!(to_compute_with() <= thread::available_parallelism().unwrap());
    }
}

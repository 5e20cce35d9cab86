//! How much of a machine's memory a model may take: one rule for every system and device. It knows no model.

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate};

use super::address_space;
use crate::load::error::LoadError;

/// What a machine says of its memory, in bytes.
///
/// On Linux free memory means what it says: beyond it, programs are ended. A model may take all of it, or what the device recommends where that
/// is less.
///
/// On macOS it does not. What idle programs hold counts as used, and macOS compresses it for whoever wants memory: a MacBook of 16 GB in daily
/// use has 4 GB free and room for a model of 8. What nobody gives up is what is wired or compressed already; the rest is `pageable`. A GPU's
/// memory, on the other hand, is wired while a model computes. macOS allows [`Self::recommended`] of it, two thirds of a small Mac's memory, and
/// programs that wired all of that made Macs of 16 GB flicker, freeze and restart (osaurus-ai/vmlx-swift #421, which leaves 8 GB since). So a
/// [reserve](Self::reserve) stays in any case: a model may take half of a Mac of 16 GB, two thirds of one of 36 GB, and nearly all that
/// macOS allows of one of 128 GB. Who raises `iogpu.wired_limit_mb` raises that, too. The CPU's memory is not wired, but used at each token: it is
/// taken by the same rule, as if two thirds were recommended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    /// What is built in, or what a caller allows.
    pub total: u64,
    /// What no program has; cached files count as free.
    pub free: u64,
    /// On macOS: what programs have to give up if need be, or is free.
    pub pageable: Option<u64>,
    /// What a device recommends to take at most: Metal's `recommendedMaxWorkingSetSize`.
    pub recommended: Option<u64>,
    /// What is free is what this process may still map (`ulimit -v`).
    pub is_of_addresses: bool,
}

/// A reserve's share of the memory, and its most: on larger Macs what macOS keeps from GPUs is enough for others.
const OF_RESERVE: u64 = 6;
const MOST_RESERVE: u64 = 3 << 30;
/// What must stay for macOS itself, whatever `iogpu.wired_limit_mb` is set to.
const OF_SYSTEM: u64 = 4 << 30;

impl Machine {
    /// This one, with what its device recommends.
    ///
    /// # Errors
    /// The free memory cannot be read.
    pub fn here(recommended: Option<u64>) -> Result<Self, LoadError> {
        let unknown = |e: sysinfo::Error| LoadError::Memory(format!("the free memory cannot be read: {e}"));
        let mut system = sysinfo::System::new().map_err(unknown)?;
        system.refresh_memory();
        let (total, available) = (system.total_memory(), system.available_memory());
        let is_macos = cfg!(target_os = "macos");
        let pageable = is_macos.then_some(available);
        let free = if is_macos { total.saturating_sub(system.used_memory()) } else { available };
        if available == 0 {
            return Err(LoadError::Memory("the system says that no memory is free".to_owned()));
        }
        // What its control group and those around it, and the limit of its addresses, leave this process, where that is less.
        let process = sysinfo::Pid::from_u32(std::process::id());
        let of_addresses = address_space::limit();
        let wanted = ProcessRefreshKind::nothing();
        let wanted = if of_addresses.is_some() { wanted.with_memory() } else { wanted };
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, wanted);
        let process = system.process(process);
        let own = process.and_then(sysinfo::Process::cgroup_limits);
        let mapped = process.map_or(0, sysinfo::Process::virtual_memory);
        let of_addresses = of_addresses.map(|limit| limit.saturating_sub(mapped));
        // A container may see its group as the only one there is.
        let limits = [system.cgroup_limits(), own].into_iter().flatten();
        let of_groups = limits.map(|limits| limits.total_memory.saturating_sub(limits.rss));
        let free = of_groups.fold(free, u64::min);
        let is_of_addresses = pageable.is_none() && of_addresses.is_some_and(|left| left < free);
        let free = of_addresses.map_or(free, |left| left.min(free));
        Ok(Self { total, free, pageable, recommended, is_of_addresses })
    }

    /// One of which a caller allows so much, whatever others do.
    pub fn with(bytes: u64) -> Self {
        Self { total: bytes, free: bytes, pageable: None, recommended: Some(bytes), is_of_addresses: false }
    }

    /// Bytes that a model may take.
    pub fn most(&self) -> u64 {
        match self.pageable {
            None => self.recommended.map_or(self.free, |recommended| self.free.min(recommended)),
            Some(pageable) => self.recommended_or_usual().min(pageable).saturating_sub(self.reserve()),
        }
    }

    /// Bytes that stay for others in any case, beside what is wired and compressed already and what the device recommends to leave.
    pub fn reserve(&self) -> u64 {
        self.pageable.map_or(0, |_| (self.total / OF_RESERVE).min(MOST_RESERVE))
    }

    /// How much a cache takes by default of `left` bytes: half of what is free, a quarter of what may be others'.
    pub fn of_cache(&self, left: u128) -> u128 {
        left / if self.pageable.is_some() { 4 } else { 2 }
    }

    /// How there may be more memory than [`Self::most`], where a model would take `needed` bytes.
    pub fn remedy(&self, needed: u128) -> Option<String> {
        if let Some(limit) = self.wired_limit(needed) {
            return Some(format!(
                "let the GPU have more of this Mac's memory with `sudo sysctl iogpu.wired_limit_mb={limit}`, until it restarts"
            ));
        }
        let are_others_in_the_way = match self.pageable {
            None => self.recommended.is_none_or(|recommended| self.free < recommended),
            Some(pageable) => pageable < self.recommended_or_usual(),
        };
        are_others_in_the_way.then(|| match self.is_of_addresses {
            true => "raise what this process may map (`ulimit -v`)".to_owned(),
            false => "end other programs".to_owned(),
        })
    }

    /// MiB that macOS would have to let a GPU have, if it can and then is enough.
    fn wired_limit(&self, needed: u128) -> Option<u64> {
        let limit = u64::try_from(needed).ok()?.checked_add(self.reserve())?.next_multiple_of(1 << 30);
        let room = self.pageable?.min(self.total.saturating_sub(OF_SYSTEM));
        (limit > self.recommended? && limit <= room).then_some(limit >> 20)
    }

    fn recommended_or_usual(&self) -> u64 {
        self.recommended.unwrap_or(self.total / 3 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(number: f64) -> u64 {
        (number * f64::from(1 << 30)) as u64
    }

    /// A Mac of so many GiB, with what is free, pageable and recommended for its GPU.
    fn mac(total: f64, free: f64, pageable: f64, recommended: impl Into<Option<f64>>) -> Machine {
        let recommended = recommended.into().map(gib);
        let pageable = Some(gib(pageable));
        Machine { total: gib(total), free: gib(free), pageable, recommended, is_of_addresses: false }
    }

    fn linux(total: f64, free: f64, recommended: impl Into<Option<f64>>) -> Machine {
        Machine { pageable: None, ..mac(total, free, free, recommended) }
    }

    const AIR: [f64; 4] = [16.0, 4.0, 11.0, 32.0 / 3.0];

    fn air() -> Machine {
        let [total, free, pageable, recommended] = AIR;
        mac(total, free, pageable, recommended)
    }

    #[test]
    fn a_model_takes_what_a_machine_can_do_without() {
        for (what, machine, most) in [
            ("MacBook Air, 16 GB, a browser and an editor open", air(), 8.0),
            ("the same on the CPU", Machine { recommended: None, ..air() }, 8.0),
            ("the same after a restart", mac(16.0, 12.0, 13.5, AIR[3]), 8.0),
            ("the same with many programs, 5 GB of them compressed", mac(16.0, 1.0, 8.0, AIR[3]), 8.0 - 8.0 / 3.0),
            ("the same beside another model's 7 GiB, which are wired", mac(16.0, 1.0, 4.0, AIR[3]), 4.0 - 8.0 / 3.0),
            ("the same beside one that has all", mac(16.0, 0.5, 2.0, AIR[3]), 0.0),
            ("the same whose GPU may have 12 GiB, after a restart", mac(16.0, 12.0, 13.5, 12.0), 12.0 - 8.0 / 3.0),
            ("MacBook Air, 8 GB", mac(8.0, 2.0, 5.5, 16.0 / 3.0), 4.0),
            ("Mac mini, 24 GB, at 82%, 8.4 GB of it compressed", mac(24.0, 4.3, 12.6, 16.0), 9.6),
            ("MacBook Pro, M3 Pro, 36 GB", mac(36.0, 18.0, 29.0, 27.0), 24.0),
            ("MacBook Pro, M4 Max, 128 GB", mac(128.0, 90.0, 118.0, 107.5), 104.5),
            ("its CPU", mac(128.0, 90.0, 118.0, None), 256.0 / 3.0 - 3.0),
            ("a laptop with Linux", linux(16.0, 9.0, None), 9.0),
            ("the software device on it", linux(16.0, 9.0, 16.0), 9.0),
            ("a device that recommends less than is free", linux(16.0, 9.0, 6.0), 6.0),
        ] {
            let found = machine.most() as f64 / gib(1.0) as f64;
            assert!((found - most).abs() < 1e-6, "{what}: {found} instead of {most}");
        }
        assert_eq!(Machine::with(5).most(), 5, "what a caller allows is taken");
        assert_eq!(Machine::with(5).remedy(9), None, "others are not in the way");
    }

    #[test]
    fn what_may_be_others_is_cached_in_less() {
        assert_eq!([air(), linux(16.0, 9.0, None)].map(|machine| machine.of_cache(80)), [20, 40]);
    }

    #[test]
    fn more_memory_is_had_where_it_is() {
        let remedy = |machine: Machine, needed: f64| machine.remedy(gib(needed).into()).unwrap_or_default();
        let fresh = mac(16.0, 12.0, 13.5, AIR[3]);
        assert!(remedy(fresh, 9.0).contains("`sudo sysctl iogpu.wired_limit_mb=12288`"), "{}", remedy(fresh, 9.0));
        assert!(Machine { recommended: Some(12 << 30), ..fresh }.most() > gib(9.0), "the remedy is one");
        assert_eq!(remedy(fresh, 10.0), "", "macOS needs the rest");
        assert_eq!(remedy(mac(16.0, 1.0, 8.0, AIR[3]), 6.0), "end other programs");
        assert_eq!(remedy(mac(36.0, 18.0, 29.0, 27.0), 23.0), "", "it has that much");
        assert_eq!(remedy(Machine { recommended: None, ..air() }, 9.0), "", "a CPU has no limit to raise");
        assert_eq!(remedy(linux(16.0, 9.0, None), 12.0), "end other programs");
        let limited = Machine { is_of_addresses: true, ..linux(16.0, 9.0, None) };
        assert!(remedy(limited, 12.0).contains("`ulimit -v`"));
    }

    #[test]
    fn this_machine_has_memory() {
        let here = Machine::here(None).unwrap();
        assert!(here.most() > 0 && here.most() <= here.total, "{here:?}");
    }

    /// In a process of its own, whose limit it is.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_may_be_mapped_bounds_what_a_model_may_take() {
        const NAME: &str = "plan::available::tests::what_may_be_mapped_bounds_what_a_model_may_take";
        if let Some(limit) = address_space::limit() {
            let here = Machine::here(None).unwrap();
            assert!(here.most() > 0 && here.most() < limit && here.is_of_addresses, "{here:?}");
            return;
        }
        let this = std::env::current_exe().unwrap();
        let limited = "ulimit -v 2097152; exec \"$0\" \"$1\"";
        let output = std::process::Command::new("sh").args(["-c", limited]).arg(this).arg(NAME).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}

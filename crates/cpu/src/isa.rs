//! Which instruction set the kernels use, detected at run time. It knows the sets' names, not what is computed with them.

use std::fmt;
use std::str::FromStr;

/// An instruction set that the kernels are written for. One binary contains all those of its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64 with those of [`Isa::Avx512Bf16`] and AMX for bf16 and bytes: tiles of 16x16, for matmuls with activations of bf16 or 8 bits.
    AmxBf16,
    /// x86-64 with AVX-512 F, BW, VL and the dot products of bf16 and of bytes (VNNI).
    Avx512Bf16,
    /// x86-64 with AVX-512 F, BW and VL and the dot product of bytes (VNNI).
    Avx512Vnni,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C and the dot product of bytes (AVX-VNNI).
    Avx2Vnni,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit Arm with Advanced SIMD and the products of bf16 and of bytes, of vectors and of two rows by two outputs (`bf16`, `dotprod`, `i8mm`).
    NeonBf16,
    /// 64-bit Arm with Advanced SIMD and the dot product of bytes.
    NeonDotprod,
    /// 64-bit Arm with Advanced SIMD.
    Neon,
    /// Plain Rust, for any machine.
    Portable,
}

impl Isa {
    /// All sets, the best first.
    const ALL: [Self; 10] = [
        Self::AmxBf16,
        Self::Avx512Bf16,
        Self::Avx512Vnni,
        Self::Avx512,
        Self::Avx2Vnni,
        Self::Avx2,
        Self::NeonBf16,
        Self::NeonDotprod,
        Self::Neon,
        Self::Portable,
    ];

    /// The fastest set that this machine can run. Intel's dot product of bf16 pairs takes as long as four multiply-adds of f32, each of
    /// which does half as much: without matrices, those are taken.
    #[must_use]
    pub fn best() -> Self {
        let is_slow = |isa| isa == Self::Avx512Bf16 && is_intel();
        Self::ALL.into_iter().find(|&isa| isa.is_available() && !is_slow(isa)).unwrap_or(Self::Portable)
    }

    /// Every set that this machine can run, the best first. Conformance tests run on each of them.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine can run it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Vnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16 => Self::Avx512Bf16.is_available() && crate::amx::works(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => Self::Avx512Vnni.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => {
                Self::NeonDotprod.is_available()
                    && std::arch::is_aarch64_feature_detected!("bf16")
                    && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => Self::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            _ => false,
        }
    }

    /// The name that reports and logs use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AmxBf16 => "amx-bf16",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512 => "avx512",
            Self::Avx2Vnni => "avx2-vnni",
            Self::Avx2 => "avx2",
            Self::NeonBf16 => "neon-bf16",
            Self::NeonDotprod => "neon-dotprod",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|isa| isa.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown instruction set {text:?}: expected one of {names}")
        })
    }
}

/// Whether Intel made the processor.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn the_best_set_is_available_and_every_name_means_a_set() {
        let available = Isa::available();
        assert!(available.contains(&Isa::best()));
        assert_eq!(available.last(), Some(&Isa::Portable));
        assert!(available.iter().all(|isa| isa.is_available()));
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert!("avx".parse::<Isa>().unwrap_err().contains("avx512-bf16"));
    }
}

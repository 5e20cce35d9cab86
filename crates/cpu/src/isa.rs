//! Which instruction set the kernels use, detected at run time. It knows the sets' names, not what is computed with them.

use std::fmt;

/// An instruction set that the kernels are written for. One binary contains all those of its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64 with AVX-512 F, BW, VL and the bf16 dot product.
    Avx512Bf16,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit Arm with Advanced SIMD.
    Neon,
    /// Plain Rust, for any machine.
    Portable,
}

impl Isa {
    /// All sets, the best first.
    const ALL: [Self; 5] = [Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The best set that this machine can run.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
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
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => Self::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            _ => false,
        }
    }

    /// The name that reports and logs use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }
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
    fn the_best_set_is_the_first_available_and_portable_is_the_last() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::best()));
        assert_eq!(available.last(), Some(&Isa::Portable));
        assert!(available.iter().all(|isa| isa.is_available()));
    }
}

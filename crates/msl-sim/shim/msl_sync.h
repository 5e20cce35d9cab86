// The running thread and its barriers. Every operation on which threads meet carries the place in the source where it was
// called, which is how the host knows that they meet. It knows nothing of how threads are run.
#pragma once

// Set by msl_bind.
extern "C" __attribute__((visibility("hidden"))) const MslHost* msl_host;

#define MSL_SITE MslSite site = MslSite{__builtin_FILE(), (uint32_t)__builtin_LINE(), (uint32_t)__builtin_COLUMN()}

namespace msl {

// The same all through a kernel's run: `const` lets the compiler ask once.
__attribute__((const, noinline)) MSL_UNCHECKED static const MslThread* running_thread() { return msl_host->thread(); }
__attribute__((const, noinline)) MSL_UNCHECKED static uint lane() { return msl_host->thread()->index_in_simdgroup; }

}  // namespace msl

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((uint)a & (uint)b); }

MSL_INLINE void threadgroup_barrier(mem_flags flags, MSL_SITE) { msl_host->threadgroup_barrier(&site, (uint)flags); }
MSL_INLINE void simdgroup_barrier(mem_flags flags, MSL_SITE) { msl_host->simdgroup_barrier(&site, (uint)flags); }

}  // namespace metal

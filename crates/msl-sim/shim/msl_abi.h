// What a compiled kernel library and the runtime that loads it know of each other. Mirrored by src/abi.rs.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// A place in a .metal file: names the operation on which lanes meet, and what a finding points to.
struct MslSite {
  const char* file;
  uint32_t line;
  uint32_t column;
};

// Where a thread is. All in threads or threadgroups, in x, y, z.
struct MslThread {
  uint32_t position_in_grid[3];
  uint32_t position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3];
  uint32_t threads_per_threadgroup[3];           // of this threadgroup: smaller at a ragged edge
  uint32_t dispatch_threads_per_threadgroup[3];  // as dispatched
  uint32_t threadgroups_per_grid[3];
  uint32_t threads_per_grid[3];
  uint32_t index_in_threadgroup;
  uint32_t index_in_simdgroup;  // the lane
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup;
};

// Pointers bound to [[buffer(n)]] and [[threadgroup(n)]]; what is not bound points to a page of zeros.
struct MslArguments {
  void* buffers[31];
  void* threadgroup[31];
};

// Computes a simdgroup operation for the lanes in `mask`: records[lane] is what that lane passed, results are written into it.
typedef void (*MslResolver)(void* const* records, uint32_t mask);

// MSL_PACKED is or-ed to an access that does not promise to be aligned to its size.
enum { MSL_READ = 0, MSL_WRITE = 1, MSL_ATOMIC = 2, MSL_PACKED = 4 };

// What the runtime offers to a running kernel. The calling thread of the kernel is the one that the runtime resumed last.
struct MslHost {
  // The thread that runs.
  const MslThread* (*thread)(void);
  // Waits until all lanes of the simdgroup that can arrive have arrived at `site`, then resolves.
  void (*simd_operation)(const MslSite* site, void* record, MslResolver resolve);
  // A simdgroup multiplies two 8x8 matrices: for counting.
  void (*matrix_product)(void);
  // `flags` as in metal::mem_flags: device 1, threadgroup 2.
  void (*simdgroup_barrier)(const MslSite* site, uint32_t flags);
  void (*threadgroup_barrier)(const MslSite* site, uint32_t flags);
  // Memory of a threadgroup variable: the same for all threads of a threadgroup. `key` tells variables apart.
  void* (*threadgroup_variable)(const MslSite* site, const void* key, size_t size, size_t align, const char* name);
  // The value of [[function_constant(index)]]; false if it has none. A size of 0 only asks whether it has one.
  bool (*function_constant)(uint32_t index, void* out, size_t size);
  // A load or store of `size` bytes by the running thread, called from `pc`. Only in checked libraries.
  void (*access)(const void* address, size_t size, uint32_t kind, const void* pc);
  // The running thread divides by an integer zero, and goes on as if it were one. Only in checked libraries.
  void (*division_by_zero)(const void* pc);
  // The running thread is about to use an element that an array, whose type clang describes so, has not: this does not return if
  // the host checks. Only in checked libraries.
  void (*index_out_of_range)(const char* array, int64_t index, const void* pc);
};

enum { MSL_BUFFER = 0, MSL_THREADGROUP = 1, MSL_BUILTIN = 2 };

// A parameter of a kernel, in order.
struct MslParameter {
  const char* name;
  uint32_t kind;
  uint32_t index;  // [[buffer(index)]], [[threadgroup(index)]]
  uint32_t writable;  // of a buffer: not const and not constant
  uint32_t size;  // of what it points to
};

struct MslEntry {
  const char* name;  // host_name, or the function's name
  const MslParameter* parameters;
  uint32_t parameter_count;
  uint32_t max_threads;  // [[max_total_threads_per_threadgroup(n)]], 0 if it has none
  void (*invoke)(const MslArguments* arguments);  // runs the kernel as the thread that the host says
};

// Defined by every library. `msl_bind` sets the host and then evaluates function constants and program-scope variables.
void msl_bind(const MslHost* host);
const MslEntry* msl_entries(size_t* count);
}

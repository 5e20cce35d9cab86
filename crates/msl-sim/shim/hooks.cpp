// The functions that clang calls before each load and store under -fsanitize=thread, and for indices under array-bounds. They hand
// what they are told to the host and know nothing of what it is checked for. Compiled without these options and linked into each
// checked library; there is no sanitizer runtime. Clang calls nothing for accesses of other widths than 1, 2, 4, 8 and 16 bytes that are no memcpy: src/compile/wide.rs
// adds a call of msl_access for them.
#include "msl_abi.h"

extern "C" __attribute__((visibility("hidden"))) const MslHost* msl_host;

#define MSL_CALLER __builtin_return_address(0)
#define MSL_EXPORT extern "C" __attribute__((visibility("hidden")))

namespace {

inline __attribute__((always_inline)) void access(const volatile void* address, size_t size, uint32_t kind, const void* pc) {
  msl_host->access((const void*)address, size, kind, pc);
}

}  // namespace

// That it is there tells the host that the library is checked.
extern "C" __attribute__((visibility("default"))) const uint32_t msl_instrumented = 1;

MSL_EXPORT void __tsan_init() {}
MSL_EXPORT void __tsan_func_entry(void*) {}
MSL_EXPORT void __tsan_func_exit() {}
MSL_EXPORT void __tsan_vptr_update(void**, void*) {}
MSL_EXPORT void __tsan_vptr_read(void**) {}

#define MSL_ACCESS(size)                                                                                              \
  MSL_EXPORT void __tsan_read##size(void* p) { access(p, size, MSL_READ, MSL_CALLER); }                               \
  MSL_EXPORT void __tsan_write##size(void* p) { access(p, size, MSL_WRITE, MSL_CALLER); }                             \
  MSL_EXPORT void __tsan_unaligned_read##size(void* p) { access(p, size, MSL_READ | MSL_PACKED, MSL_CALLER); }        \
  MSL_EXPORT void __tsan_unaligned_write##size(void* p) { access(p, size, MSL_WRITE | MSL_PACKED, MSL_CALLER); }      \
  MSL_EXPORT void __tsan_read_write##size(void* p) {                                                                  \
    access(p, size, MSL_READ, MSL_CALLER);                                                                            \
    access(p, size, MSL_WRITE, MSL_CALLER);                                                                           \
  }                                                                                                                   \
  MSL_EXPORT void __tsan_unaligned_read_write##size(void* p) {                                                        \
    access(p, size, MSL_READ | MSL_PACKED, MSL_CALLER);                                                               \
    access(p, size, MSL_WRITE | MSL_PACKED, MSL_CALLER);                                                              \
  }
MSL_ACCESS(1)
MSL_ACCESS(2)
MSL_ACCESS(4)
MSL_ACCESS(8)
MSL_ACCESS(16)

MSL_EXPORT void msl_division_by_zero() { msl_host->division_by_zero(MSL_CALLER); }

// What clang says of an array and an index: their types, and the place, which the caller's address tells too.
struct MslType {
  uint16_t kind;
  uint16_t integer;  // its lowest bit: signed; the others: the logarithm of its bits
  char name[];
};
struct MslIndexed {
  MslSite site;
  const MslType* array;
  const MslType* index;
};
MSL_EXPORT void __ubsan_handle_out_of_bounds(const MslIndexed* what, size_t index) {
  unsigned unused = 64 - (1u << (what->index->integer >> 1));
  bool is_signed = what->index->integer & 1;
  int64_t value = is_signed ? (int64_t)(index << unused) >> unused : (int64_t)index;
  msl_host->index_out_of_range(what->array->name, value, MSL_CALLER);
}
MSL_EXPORT void msl_access(void* p, size_t size, uint32_t kind) { access(p, size, kind, MSL_CALLER); }

MSL_EXPORT void __tsan_read_range(void* p, size_t size) { access(p, size, MSL_READ | MSL_PACKED, MSL_CALLER); }
MSL_EXPORT void __tsan_write_range(void* p, size_t size) { access(p, size, MSL_WRITE | MSL_PACKED, MSL_CALLER); }

MSL_EXPORT void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, MSL_READ | MSL_PACKED, MSL_CALLER);
  access(to, size, MSL_WRITE | MSL_PACKED, MSL_CALLER);
  return __builtin_memcpy(to, from, size);
}
MSL_EXPORT void* __tsan_memmove(void* to, const void* from, size_t size) {
  access(from, size, MSL_READ | MSL_PACKED, MSL_CALLER);
  access(to, size, MSL_WRITE | MSL_PACKED, MSL_CALLER);
  return __builtin_memmove(to, from, size);
}
MSL_EXPORT void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, MSL_WRITE | MSL_PACKED, MSL_CALLER);
  return __builtin_memset(to, value, size);
}

// Metal's atomics are relaxed; threads of the host that run threadgroups of one dispatch make them real.
#define MSL_UPDATE(bits, T, operation)                                                                                \
  MSL_EXPORT T __tsan_atomic##bits##_fetch_##operation(volatile T* p, T value, int) {                                 \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    return __atomic_fetch_##operation(p, value, __ATOMIC_RELAXED);                                                    \
  }
#define MSL_EXCHANGE(bits, T, strength, weak)                                                                         \
  MSL_EXPORT int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* expected, T value, int, int) {   \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    return __atomic_compare_exchange_n(p, expected, value, weak, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                 \
  }
#define MSL_ATOMICS(bits, T)                                                                                          \
  MSL_EXPORT T __tsan_atomic##bits##_load(const volatile T* p, int) {                                                 \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    return __atomic_load_n(p, __ATOMIC_RELAXED);                                                                      \
  }                                                                                                                   \
  MSL_EXPORT void __tsan_atomic##bits##_store(volatile T* p, T value, int) {                                          \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    __atomic_store_n(p, value, __ATOMIC_RELAXED);                                                                     \
  }                                                                                                                   \
  MSL_EXPORT T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                                          \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);                                                           \
  }                                                                                                                   \
  MSL_EXPORT T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T value, int, int) {             \
    access(p, sizeof(T), MSL_ATOMIC, MSL_CALLER);                                                                     \
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                      \
    return expected;                                                                                                  \
  }                                                                                                                   \
  MSL_EXCHANGE(bits, T, strong, false)                                                                                \
  MSL_EXCHANGE(bits, T, weak, true)                                                                                   \
  MSL_UPDATE(bits, T, add)                                                                                            \
  MSL_UPDATE(bits, T, sub)                                                                                            \
  MSL_UPDATE(bits, T, and)                                                                                            \
  MSL_UPDATE(bits, T, or)                                                                                             \
  MSL_UPDATE(bits, T, xor)                                                                                            \
  MSL_UPDATE(bits, T, nand)
MSL_ATOMICS(8, uint8_t)
MSL_ATOMICS(16, uint16_t)
MSL_ATOMICS(32, uint32_t)
MSL_ATOMICS(64, uint64_t)

MSL_EXPORT void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MSL_EXPORT void __tsan_atomic_signal_fence(int) {}

// Relaxed atomics on device and threadgroup memory. It knows nothing of which thread runs.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed = 0 };

template <class T> struct atomic {
  T value;
  atomic() = default;
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;

}  // namespace metal

namespace msl {

template <class T> struct identity { typedef T type; };

// The address alone: what is done to it is the same in every address space.
template <class T> MSL_INLINE T* cell(const volatile MSL_IN_DEVICE atomic<T>* object) { return (T*)object; }
template <class T> MSL_INLINE T* cell(const volatile MSL_IN_THREADGROUP atomic<T>* object) { return (T*)object; }

template <class T, class F> MSL_INLINE T fetch_update(T* p, F f) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (;;) {
    T next = f(old);
    if (__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}
template <class T> MSL_INLINE T fetch_add(T* p, T x) {
  if constexpr (is_integral_v<T>)
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
  else
    return fetch_update(p, [x](T old) { return old + x; });
}
template <class T> MSL_INLINE T fetch_sub(T* p, T x) {
  if constexpr (is_integral_v<T>)
    return __atomic_fetch_sub(p, x, __ATOMIC_RELAXED);
  else
    return fetch_update(p, [x](T old) { return old - x; });
}
template <class T> MSL_INLINE T fetch_and(T* p, T x) { return __atomic_fetch_and(p, x, __ATOMIC_RELAXED); }
template <class T> MSL_INLINE T fetch_or(T* p, T x) { return __atomic_fetch_or(p, x, __ATOMIC_RELAXED); }
template <class T> MSL_INLINE T fetch_xor(T* p, T x) { return __atomic_fetch_xor(p, x, __ATOMIC_RELAXED); }
// Not clang's own, before which it would call no hook of the checker.
template <class T> MSL_INLINE T fetch_min(T* p, T x) {
  return fetch_update(p, [x](T old) { return old < x ? old : x; });
}
template <class T> MSL_INLINE T fetch_max(T* p, T x) {
  return fetch_update(p, [x](T old) { return old > x ? old : x; });
}

}  // namespace msl

namespace metal {

#define MSL_FETCH(Space, operation)                                                             \
  template <class T>                                                                            \
  MSL_INLINE T atomic_fetch_##operation##_explicit(volatile Space atomic<T>* object,            \
                                                   typename msl::identity<T>::type operand,     \
                                                   memory_order) {                              \
    return msl::fetch_##operation(msl::cell(object), operand);                                            \
  }
#define MSL_ATOMICS(Space)                                                                                     \
  template <class T> MSL_INLINE T atomic_load_explicit(const volatile Space atomic<T>* object, memory_order) { \
    T result;                                                                                                  \
    __atomic_load(msl::cell(object), &result, __ATOMIC_RELAXED);                                                    \
    return result;                                                                                             \
  }                                                                                                            \
  template <class T>                                                                                           \
  MSL_INLINE void atomic_store_explicit(volatile Space atomic<T>* object,                                      \
                                        typename msl::identity<T>::type desired, memory_order) {               \
    __atomic_store(msl::cell(object), &desired, __ATOMIC_RELAXED);                                                  \
  }                                                                                                            \
  template <class T>                                                                                           \
  MSL_INLINE T atomic_exchange_explicit(volatile Space atomic<T>* object,                                      \
                                        typename msl::identity<T>::type desired, memory_order) {               \
    T result;                                                                                                  \
    __atomic_exchange(msl::cell(object), &desired, &result, __ATOMIC_RELAXED);                                      \
    return result;                                                                                             \
  }                                                                                                            \
  template <class T>                                                                                           \
  MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile Space atomic<T>* object, T* expected,         \
                                                        typename msl::identity<T>::type desired, memory_order, \
                                                        memory_order) {                                        \
    return __atomic_compare_exchange(msl::cell(object), expected, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
  }                                                                                                            \
  MSL_FETCH(Space, add) MSL_FETCH(Space, sub) MSL_FETCH(Space, and) MSL_FETCH(Space, or)                       \
  MSL_FETCH(Space, xor) MSL_FETCH(Space, min) MSL_FETCH(Space, max)
MSL_ATOMICS(MSL_IN_DEVICE)
MSL_ATOMICS(MSL_IN_THREADGROUP)
#undef MSL_ATOMICS
#undef MSL_FETCH

}  // namespace metal

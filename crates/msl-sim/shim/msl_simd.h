// Operations of a simdgroup and a quadgroup. Each lane hands the host a record; when all lanes have arrived, the host calls the
// operation's resolver, which reads the records of the lanes that take part and writes each lane's result into its own.
#pragma once

namespace msl {

template <class T> struct Record {
  T value;
  uint argument;
};

constexpr uint simdgroup_size = 32;
constexpr uint every_lane = 0xffffffffu;

template <class T, class Operation> MSL_UNCHECKED static void resolve(void* const* records, uint mask) {
  Operation::template run<T>((Record<T>* const*)records, mask);
}

template <class T, class Operation> MSL_INLINE T simdgroup_operation(T value, uint argument, const MslSite& site) {
  Record<T> record{value, argument};
  msl_host->simd_operation(&site, &record, &resolve<T, Operation>);
  return record.value;
}

// What a lane reads that takes no part: undefined in Metal, here a NaN or all ones.
template <class T> MSL_UNCHECKED static T poison() {
  T value;
  __builtin_memset(&value, 0xff, sizeof(T));
  return value;
}

template <class T> using simd_type = enable_if_t<is_simd_type<T>, T>;

// Sums are taken in f32 and rounded once for the types narrower than it; lanes in ascending order.
template <class T> struct accumulator { typedef T type; };
template <> struct accumulator<half> { typedef float type; };
template <> struct accumulator<bfloat> { typedef float type; };
template <int N> struct accumulator<vec<half, N>> { typedef vec<float, N> type; };
template <int N> struct accumulator<vec<bfloat, N>> { typedef vec<float, N> type; };

#define MSL_EACH(lane, mask) for (uint lane = 0; lane < simdgroup_size; lane++) if ((mask) >> lane & 1)

}  // namespace msl

#define MSL_REDUCTION(name, Accumulator, ...)                                                           \
  namespace msl {                                                                                       \
  struct simd_##name##_operation {                                                                      \
    template <class T> MSL_UNCHECKED static void fold(Record<T>* const* records, uint mask) {           \
      typedef Accumulator A;                                                                            \
      uint first = __builtin_ctz(mask);                                                                 \
      A a = msl::cast<A>(records[first]->value);                                                       \
      for (uint rest = mask & (mask - 1); rest; rest &= rest - 1) {                                     \
        A b = msl::cast<A>(records[__builtin_ctz(rest)]->value);                                       \
        a = (A)(__VA_ARGS__);                                                                           \
      }                                                                                                 \
      T result = msl::cast<T>(a);                                                                      \
      MSL_EACH(lane, mask) records[lane]->value = result;                                               \
    }                                                                                                   \
    template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {            \
      fold(records, mask);                                                                              \
    }                                                                                                   \
  };                                                                                                    \
  struct quad_##name##_operation {                                                                      \
    template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {            \
      for (uint quad = 0; quad < simdgroup_size; quad += 4)                                             \
        if (mask & 15u << quad) simd_##name##_operation::fold(records, mask & 15u << quad);             \
    }                                                                                                   \
  };                                                                                                    \
  }                                                                                                     \
  namespace metal {                                                                                     \
  template <class T> MSL_INLINE msl::simd_type<T> simd_##name(T value, MSL_SITE) {                      \
    return msl::simdgroup_operation<T, msl::simd_##name##_operation>(value, 0, site);                   \
  }                                                                                                     \
  template <class T> MSL_INLINE msl::simd_type<T> quad_##name(T value, MSL_SITE) {                      \
    return msl::simdgroup_operation<T, msl::quad_##name##_operation>(value, 0, site);                   \
  }                                                                                                     \
  }
MSL_REDUCTION(sum, typename accumulator<T>::type, a + b)
MSL_REDUCTION(product, typename accumulator<T>::type, a * b)
MSL_REDUCTION(max, T, metal::max(a, b))
MSL_REDUCTION(min, T, metal::min(a, b))
MSL_REDUCTION(and, T, a & b)
MSL_REDUCTION(or, T, a | b)
MSL_REDUCTION(xor, T, a ^ b)
#undef MSL_REDUCTION

namespace msl {

// `source`: the lane whose value a lane gets, or -1 to keep its own.
template <class T, class Source> MSL_UNCHECKED static void permute(Record<T>* const* records, uint mask, Source source) {
  T values[simdgroup_size];
  MSL_EACH(lane, mask) values[lane] = records[lane]->value;
  MSL_EACH(lane, mask) {
    int from = source((int)lane, (int)records[lane]->argument);
    if (from < 0) continue;
    records[lane]->value = from < (int)simdgroup_size && mask >> from & 1 ? values[from] : poison<T>();
  }
}

}  // namespace msl

#define MSL_SHUFFLE(name, ...)                                                                          \
  namespace msl {                                                                                       \
  struct name##_operation {                                                                             \
    template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {            \
      permute(records, mask, [](int lane, int argument) MSL_UNCHECKED { (void)lane; return __VA_ARGS__; }); \
    }                                                                                                   \
  };                                                                                                    \
  }                                                                                                     \
  namespace metal {                                                                                     \
  template <class T> MSL_INLINE msl::simd_type<T> name(T value, ushort argument, MSL_SITE) {            \
    return msl::simdgroup_operation<T, msl::name##_operation>(value, argument, site);                   \
  }                                                                                                     \
  }
MSL_SHUFFLE(simd_shuffle, argument)
MSL_SHUFFLE(simd_broadcast, argument)
MSL_SHUFFLE(simd_shuffle_xor, lane ^ argument)
MSL_SHUFFLE(simd_shuffle_up, lane - argument)
MSL_SHUFFLE(simd_shuffle_down, lane + argument < 32 ? lane + argument : -1)
MSL_SHUFFLE(simd_shuffle_rotate_up, (lane - argument) & 31)
MSL_SHUFFLE(simd_shuffle_rotate_down, (lane + argument) & 31)
MSL_SHUFFLE(quad_shuffle, (lane & ~3) | (argument & 3))
MSL_SHUFFLE(quad_broadcast, (lane & ~3) | (argument & 3))
MSL_SHUFFLE(quad_shuffle_xor, (lane & ~3) | ((lane ^ argument) & 3))
MSL_SHUFFLE(quad_shuffle_up, (lane & 3) - argument < 0 ? -1 : lane - argument)
MSL_SHUFFLE(quad_shuffle_down, (lane & 3) + argument > 3 ? -1 : lane + argument)
MSL_SHUFFLE(quad_shuffle_rotate_up, (lane & ~3) | ((lane - argument) & 3))
MSL_SHUFFLE(quad_shuffle_rotate_down, (lane & ~3) | ((lane + argument) & 3))
#undef MSL_SHUFFLE

namespace msl {

struct simd_broadcast_first_operation {
  template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {
    T value = records[__builtin_ctz(mask)]->value;
    MSL_EACH(lane, mask) records[lane]->value = value;
  }
};

}  // namespace msl

namespace metal {

template <class T> MSL_INLINE msl::simd_type<T> simd_broadcast_first(T value, MSL_SITE) {
  return msl::simdgroup_operation<T, msl::simd_broadcast_first_operation>(value, 0, site);
}

}  // namespace metal

#define MSL_PREFIX(name, identity, inclusive, ...)                                               \
  namespace msl {                                                                                \
  struct simd_prefix_##name##_operation {                                                        \
    template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {     \
      typedef typename accumulator<T>::type A;                                                   \
      A a = (A)(identity);                                                                       \
      MSL_EACH(lane, mask) {                                                                     \
        A b = msl::cast<A>(records[lane]->value);                                               \
        A next = (A)(__VA_ARGS__);                                                               \
        records[lane]->value = msl::cast<T>(inclusive ? next : a);                              \
        a = next;                                                                                \
      }                                                                                          \
    }                                                                                            \
  };                                                                                             \
  }                                                                                              \
  namespace metal {                                                                              \
  template <class T> MSL_INLINE msl::simd_type<T> simd_prefix_##name(T value, MSL_SITE) {        \
    return msl::simdgroup_operation<T, msl::simd_prefix_##name##_operation>(value, 0, site);     \
  }                                                                                              \
  }
MSL_PREFIX(inclusive_sum, 0, true, a + b)
MSL_PREFIX(exclusive_sum, 0, false, a + b)
MSL_PREFIX(inclusive_product, 1, true, a * b)
MSL_PREFIX(exclusive_product, 1, false, a * b)
#undef MSL_PREFIX

namespace msl {

struct simd_ballot_operation {
  template <class T> MSL_UNCHECKED static void run(Record<T>* const* records, uint mask) {
    uint votes = 0;
    MSL_EACH(lane, mask) votes |= (records[lane]->value & 1) << lane;
    MSL_EACH(lane, mask) records[lane]->value = votes;
  }
};
MSL_INLINE uint ballot(uint value, const MslSite& site) {
  return simdgroup_operation<uint, simd_ballot_operation>(value, 0, site);
}
// The lanes that take part.
MSL_INLINE uint active(const MslSite& site) { return ballot(1, site); }

}  // namespace msl

namespace metal {

// Lanes without a source take theirs from `filling`, whose lanes continue the simdgroup.
template <class T> MSL_INLINE msl::simd_type<T> simd_shuffle_and_fill_up(T value, T filling, ushort delta, MSL_SITE) {
  T shifted = simd_shuffle_rotate_up(value, delta, site);
  T filled = simd_shuffle_rotate_up(filling, delta, site);
  return msl::lane() < delta ? filled : shifted;
}
template <class T> MSL_INLINE msl::simd_type<T> simd_shuffle_and_fill_down(T value, T filling, ushort delta, MSL_SITE) {
  T shifted = simd_shuffle_rotate_down(value, delta, site);
  T filled = simd_shuffle_rotate_down(filling, delta, site);
  return msl::lane() + delta >= msl::simdgroup_size ? filled : shifted;
}

struct simd_vote {
  typedef ulong vote_t;
  ulong votes;
  explicit simd_vote(ulong v = 0) : votes(v) {}
  explicit operator ulong() const { return votes; }
  bool all() const { return (uint)votes == msl::every_lane; }
  bool any() const { return votes != 0; }
};
MSL_INLINE simd_vote simd_ballot(bool value, MSL_SITE) { return simd_vote(msl::ballot(value, site)); }
MSL_INLINE simd_vote simd_active_threads_mask(MSL_SITE) { return simd_vote(msl::active(site)); }
MSL_INLINE bool simd_any(bool value, MSL_SITE) { return msl::ballot(value, site) != 0; }
MSL_INLINE bool simd_all(bool value, MSL_SITE) { return msl::ballot(!value, site) == 0; }
MSL_INLINE bool simd_is_first(MSL_SITE) { return (uint)__builtin_ctz(msl::active(site)) == msl::lane(); }

#undef MSL_EACH

}  // namespace metal

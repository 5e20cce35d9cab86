// How the host calls a kernel: from the arguments that are bound and the running thread to the kernel's own parameters.
// The front end writes one entry for each kernel; the types are the kernel's own, so that no glue is written by hand.
#pragma once

namespace msl {

enum class Builtin : uint {
  thread_position_in_grid,
  thread_position_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  threadgroups_per_grid,
  threads_per_grid,
  grid_origin,
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  threads_per_simdgroup,
  thread_index_in_quadgroup,
  quadgroup_index_in_threadgroup,
  quadgroups_per_threadgroup,
  thread_execution_width = threads_per_simdgroup,
  grid_size = threads_per_grid,
};

// What a parameter's attribute says.
struct Attribute {
  const char* name;
  uint kind;
  uint index;
};

template <class T, bool is_void = __is_void(T)> constexpr uint32_t size_of = sizeof(T);
template <class T> constexpr uint32_t size_of<T, true> = 1;

template <class P> struct Parameter {
  static constexpr uint32_t size = 0;
  static constexpr bool is_memory = false;
  static constexpr int space = 0;
  static constexpr bool is_writable = false;
};
#define MSL_PARAMETER(Space, sigil, space_number)                                   \
  template <class T> struct Parameter<Space T sigil> {                              \
    static constexpr bool is_memory = true;                                         \
    static constexpr uint32_t size = size_of<T>;                                    \
    static constexpr int space = space_number;                                      \
    static constexpr bool is_writable = !__is_const(T) && space_number != 2;        \
    MSL_INLINE static Space T sigil from(void* p) { return MSL_FROM_##space_number; } \
  };
#define MSL_FROM_1 (MSL_IN_DEVICE T*)p
#define MSL_FROM_2 (MSL_IN_CONSTANT T*)p
#define MSL_FROM_3 (MSL_IN_THREADGROUP T*)p
MSL_PARAMETER(MSL_IN_DEVICE, *, 1)
MSL_PARAMETER(MSL_IN_CONSTANT, *, 2)
MSL_PARAMETER(MSL_IN_THREADGROUP, *, 3)
#undef MSL_FROM_1
#undef MSL_FROM_2
#undef MSL_FROM_3
#define MSL_FROM_1 *(MSL_IN_DEVICE T*)p
#define MSL_FROM_2 *(MSL_IN_CONSTANT T*)p
#define MSL_FROM_3 *(MSL_IN_THREADGROUP T*)p
MSL_PARAMETER(MSL_IN_DEVICE, &, 1)
MSL_PARAMETER(MSL_IN_CONSTANT, &, 2)
MSL_PARAMETER(MSL_IN_THREADGROUP, &, 3)
#undef MSL_PARAMETER

template <class P> MSL_UNCHECKED MSL_INLINE P from_vector(const uint32_t* v) {
  typedef element_of<P> E;
  if constexpr (count_of<P> == 1)
    return (E)v[0];
  else if constexpr (count_of<P> == 2)
    return P{(E)v[0], (E)v[1]};
  else
    return P{(E)v[0], (E)v[1], (E)v[2]};
}

template <class P, Builtin which> MSL_UNCHECKED MSL_INLINE P builtin(const MslThread* t) {
  if constexpr (which == Builtin::thread_position_in_grid) return from_vector<P>(t->position_in_grid);
  else if constexpr (which == Builtin::thread_position_in_threadgroup) return from_vector<P>(t->position_in_threadgroup);
  else if constexpr (which == Builtin::threadgroup_position_in_grid) return from_vector<P>(t->threadgroup_position_in_grid);
  else if constexpr (which == Builtin::threads_per_threadgroup) return from_vector<P>(t->threads_per_threadgroup);
  else if constexpr (which == Builtin::dispatch_threads_per_threadgroup) return from_vector<P>(t->dispatch_threads_per_threadgroup);
  else if constexpr (which == Builtin::threadgroups_per_grid) return from_vector<P>(t->threadgroups_per_grid);
  else if constexpr (which == Builtin::threads_per_grid) return from_vector<P>(t->threads_per_grid);
  else if constexpr (which == Builtin::grid_origin) {
    // Another one only a stage-in region has.
    constexpr uint32_t origin[3] = {0, 0, 0};
    return from_vector<P>(origin);
  }
  else {
    if constexpr (which == Builtin::thread_index_in_threadgroup) return (P)t->index_in_threadgroup;
    else if constexpr (which == Builtin::thread_index_in_simdgroup) return (P)t->index_in_simdgroup;
    else if constexpr (which == Builtin::simdgroup_index_in_threadgroup) return (P)t->simdgroup_index_in_threadgroup;
    else if constexpr (which == Builtin::simdgroups_per_threadgroup) return (P)t->simdgroups_per_threadgroup;
    else if constexpr (which == Builtin::threads_per_simdgroup) return (P)simdgroup_size;
    else if constexpr (which == Builtin::thread_index_in_quadgroup) return (P)(t->index_in_simdgroup % 4);
    else if constexpr (which == Builtin::quadgroup_index_in_threadgroup) return (P)(t->index_in_threadgroup / 4);
    else if constexpr (which == Builtin::quadgroups_per_threadgroup)
      return (P)((t->threads_per_threadgroup[0] * t->threads_per_threadgroup[1] * t->threads_per_threadgroup[2] + 3) / 4);
  }
}

// Whether a parameter's type suits its attribute. It is a class, so that clang says where the kernel is.
template <class P, uint kind, uint index> struct Suits {
  typedef __remove_cv(P) T;
  typedef element_of<T> E;
  static constexpr bool is_index = kind == MSL_BUILTIN && index >= (uint)Builtin::thread_index_in_threadgroup;
  static_assert(kind != MSL_BUFFER || (Parameter<P>::is_memory && Parameter<P>::space != 3),
                "[[buffer]] is a device or constant pointer or reference");
  static_assert(kind != MSL_THREADGROUP || (Parameter<P>::is_memory && Parameter<P>::space == 3),
                "[[threadgroup]] is a threadgroup pointer or reference");
  static_assert(kind == MSL_BUILTIN || index < 31, "[[buffer]] and [[threadgroup]] go up to 30");
  static_assert(kind != MSL_BUILTIN || __is_same(E, uint) || __is_same(E, ushort),
                "a thread's position or index is a uint or ushort, or a vector of them");
  static_assert(kind != MSL_BUILTIN || count_of<T> <= 3, "a thread's position has at most three components");
  static_assert(!is_index || count_of<T> == 1, "an index is a scalar");
  static constexpr bool ok = true;
};

template <class P, uint kind, uint index> MSL_UNCHECKED MSL_INLINE P argument(const MslArguments* arguments, const MslThread* t) {
  if constexpr (kind == MSL_BUFFER) {
    return Parameter<P>::from(arguments->buffers[index]);
  } else if constexpr (kind == MSL_THREADGROUP) {
    return Parameter<P>::from(arguments->threadgroup[index]);
  } else {
    return builtin<__remove_cv(P), (Builtin)index>(t);
  }
}

// The function of a type among overloads and instantiations.
template <class F> constexpr F* address(F* function) { return function; }

template <size_t... I> struct Indices {};
template <class S> struct FromSequence;
template <class T, T... I> struct Sequence { typedef Indices<(size_t)I...> type; };
template <size_t N> using IndicesTo = typename __make_integer_seq<Sequence, size_t, N>::type;

template <auto function, const Attribute* attributes> struct Kernel;
template <class... P, void (*function)(P...), const Attribute* attributes> struct Kernel<function, attributes> {
  static constexpr size_t count = sizeof...(P);
  template <size_t... I> MSL_UNCHECKED MSL_INLINE static void call(const MslArguments* arguments, Indices<I...>) {
    const MslThread* t = running_thread();
    (void)t;
    function(argument<P, attributes[I].kind, attributes[I].index>(arguments, t)...);
  }
  MSL_UNCHECKED static void invoke(const MslArguments* arguments) { call(arguments, IndicesTo<count>()); }

  template <class S> struct Table;
  template <size_t... I> struct Table<Indices<I...>> {
    static_assert((Suits<P, attributes[I].kind, attributes[I].index>::ok && ... && true));
    static constexpr MslParameter parameters[] = {
        {attributes[I].name, attributes[I].kind, attributes[I].kind == MSL_BUILTIN ? 0 : attributes[I].index, Parameter<P>::is_writable,
         Parameter<P>::size}...,
        {nullptr, 0, 0, 0, 0}};
  };
  static constexpr MslEntry entry(const char* name, uint32_t max_threads) {
    return {name, Table<IndicesTo<count>>::parameters, (uint32_t)count, max_threads, &invoke};
  }
};

template <class T> T function_constant(uint32_t index) {
  T value{};
  msl_host->function_constant(index, &value, sizeof(T));
  return value;
}
inline bool function_constant_defined(uint32_t index) {
  ulong2 value;
  return msl_host->function_constant(index, &value, 0);
}

// A threadgroup variable of a kernel. `key` is the variable's own.
template <class T> MSL_INLINE MSL_IN_THREADGROUP T& threadgroup_variable(const MslSite& site, const void* key, const char* name) {
  return *(MSL_IN_THREADGROUP T*)msl_host->threadgroup_variable(&site, key, sizeof(T), alignof(T), name);
}

}  // namespace msl

// Evaluates what has program scope; written by the front end.
extern "C" void msl_initialise();
extern "C" __attribute__((visibility("default"))) const MslEntry* msl_entries(size_t* count);
const MslHost* msl_host = nullptr;
extern "C" __attribute__((visibility("default"))) MSL_UNCHECKED void msl_bind(const MslHost* host) {
  msl_host = host;
  msl_initialise();
}

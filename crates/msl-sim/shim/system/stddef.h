// The types of <stddef.h>, without the system's headers. Knows nothing of Metal.
#pragma once
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
#define NULL nullptr
#define offsetof(type, member) __builtin_offsetof(type, member)

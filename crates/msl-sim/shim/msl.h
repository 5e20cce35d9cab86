// The Metal standard library as a C++17 header for clang: what a translated .metal file is compiled against.
// Address spaces are real clang attributes, so that a pointer into one does not convert to another.
// It knows the host only through msl_abi.h, and nothing of what a kernel computes.
#pragma once
#include "msl_abi.h"
#include "msl_types.h"
#include "msl_math.h"
#include "msl_integer.h"
#include "msl_convert.h"
#include "msl_vector.h"
#include "msl_packed.h"
#include "msl_matrix.h"
#include "msl_array.h"
#include "msl_sync.h"
#include "msl_simd.h"
#include "msl_simdgroup_matrix.h"
#include "msl_atomic.h"
#include "msl_kernel.h"
#include "msl_constants.h"
#include "msl_keywords.h"

// Metal's keywords, for the translated file alone: nothing of the shim is read after them.
#pragma once
#define device MSL_IN_DEVICE
#define constant MSL_IN_CONSTANT const
#define threadgroup MSL_IN_THREADGROUP
#define thread
#define kernel
#define METAL_FUNC MSL_INLINE
#define METAL_CONST const
#define METAL_INTERNAL inline

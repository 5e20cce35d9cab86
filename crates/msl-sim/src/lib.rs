//! A software Metal device: compiles `.metal` files with clang, runs their kernels on the CPU, and checks every memory access.
//! It knows the Metal Shading Language and its execution model, and nothing of what the kernels compute.

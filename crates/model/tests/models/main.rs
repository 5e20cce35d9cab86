//! Whole models on the CPU and on the software Metal device, and the files that they come from.

#[path = "../common/mod.rs"]
mod common;

mod act_order;
mod changed_files;
mod checkpoint;
mod damage;
mod files;
mod golden;
mod head_sizes;
mod hub;
mod invariance;
mod kinds;
mod kv_sharing;
mod pooler;
mod quantization;
mod quantization_config;
mod spellings;

//! Indices that clang compares to the length of their array: which of these tests stay. It reads LLVM's text before address spaces
//! are erased, and knows nothing of what becomes of an index that is too large.

/// What clang calls where an index is too large; hooks.cpp has it.
const TEST: &str = "@__ubsan_handle_out_of_bounds(";

/// Whether a line is such a call that says what accesses to memory do not: an array in device, constant or threadgroup memory has
/// them checked themselves, and better, because what is behind an array may belong to its buffer. `after` is what follows the line.
pub(super) fn is_needless<'a>(line: &str, after: impl Iterator<Item = &'a str>) -> bool {
    line.contains("call void") && line.contains(TEST) && after.take(MOST).find_map(is_in_memory).unwrap_or(false)
}

/// Lines between a test and the element that it is about: the end of a block, a label and conversions of the index.
const MOST: usize = 12;

/// Whether a line finds an element in memory that is not the thread's own, and no table of program scope; none if it finds none.
fn is_in_memory(line: &str) -> Option<bool> {
    if line.contains("extractelement ") || line.contains("insertelement ") {
        return Some(false);
    }
    let (_, rest) = line.split_once("getelementptr ")?;
    let (_, pointer) = rest.split_once(", ptr ")?;
    Some(pointer.starts_with("addrspace(") && !pointer.starts_with("addrspace(2) @"))
}

#[cfg(test)]
mod tests {
    use super::is_needless;

    #[test]
    fn indices_of_memory_are_left_to_accesses() {
        let needless = |element: &str| {
            let call = "  call void @__ubsan_handle_out_of_bounds(ptr @2, i64 %16) #6, !dbg !23, !nosanitize !12";
            let after =
                ["  br label %17, !dbg !23", "", "17:   ; preds = %15, %3", "  %18 = zext i32 %12 to i64", element];
            is_needless(call, after.into_iter())
        };
        assert!(needless("  %19 = getelementptr inbounds [4 x i32], ptr addrspace(1) %7, i64 0, i64 %18, !dbg !23"));
        assert!(needless("  %19 = getelementptr inbounds nuw [4 x i32], ptr addrspace(3) @s, i64 0, i64 %18"));
        assert!(!needless("  %19 = getelementptr inbounds [4 x i32], ptr %7, i64 0, i64 %18, !dbg !23"));
        assert!(!needless("  %19 = getelementptr inbounds [4 x float], ptr addrspace(2) @_ZL5table, i64 0, i64 %18"));
        assert!(!needless("  %34 = extractelement <4 x float> %27, i32 %28, !dbg !53"));
        assert!(!needless("  ret void"));
        assert!(!is_needless("  %1 = load i32, ptr %0", ["  getelementptr i8, ptr addrspace(1) %2"].into_iter()));
    }
}

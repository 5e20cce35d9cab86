//! What the parts of a weight must be like, checked once for every backend. It knows no layout.

use crate::{DType, Error, HostTensor, Result};

/// Rows and columns of a group's matrix, if the arguments of [`Backend::load_weight`](crate::Backend::load_weight) fit together.
///
/// # Errors
/// [`Error::InvalidArgument`] with what does not fit.
pub fn check_weight_parts(name: &str, dtype: DType, groups: usize, parts: &[HostTensor<'_>]) -> Result<(usize, usize)> {
    let refuse = |what, expected: String, got: String| Error::InvalidArgument {
        op: "load_weight",
        what,
        expected: format!("{expected} for {name}"),
        got,
    };
    if dtype == DType::U32 {
        return Err(refuse("dtype", "a float type".into(), dtype.to_string()));
    }
    if groups == 0 || parts.is_empty() || !parts.len().is_multiple_of(groups) {
        return Err(refuse("parts", format!("a positive multiple of {groups} groups"), parts.len().to_string()));
    }
    let first = &parts[..parts.len() / groups];
    let k = first[0].cols;
    let n: usize = first.iter().map(|part| part.rows).sum();
    if n == 0 || k == 0 {
        return Err(refuse("shape", "at least one row and column".into(), format!("[{n}, {k}]")));
    }
    for (index, part) in parts.iter().enumerate() {
        let like = &first[index % first.len()];
        if part.dtype == DType::U32 || part.cols != k || part.rows != like.rows {
            let expected = format!("float [{}, {k}] in part {index}", like.rows);
            return Err(refuse("part", expected, format!("{} [{}, {}]", part.dtype, part.rows, part.cols)));
        }
        let expected = part.rows * part.cols * part.dtype.size();
        if part.bytes.len() != expected {
            let expected = format!("{expected} bytes in part {index}");
            return Err(refuse("part", expected, format!("{} bytes", part.bytes.len())));
        }
    }
    Ok((n, k))
}

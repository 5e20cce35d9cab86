//! What a weight is made of, checked once for every backend. It knows no layout.

use crate::{DType, Error, HostTensor, Result, WeightFormat};

/// The tensors of a checkpoint that become one weight. `parts` are split evenly over `groups`; those of a group are concatenated
/// along their rows: q, k and v of a fused projection, or gate and up of each expert.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// For errors: the names of the tensors.
    pub name: &'a str,
    /// Matrices: experts, or 1.
    pub groups: usize,
    /// Their tensors, in the order of groups.
    pub parts: &'a [HostTensor<'a>],
}

impl<'a> WeightSource<'a> {
    /// Of one matrix.
    pub fn matrix(name: &'a str, parts: &'a [HostTensor<'a>]) -> Self {
        Self { name, groups: 1, parts }
    }

    /// Rows and columns of a group's matrix, if the parts fit together and to `format`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with what does not fit.
    pub fn check(&self, format: WeightFormat) -> Result<(usize, usize)> {
        let Self { name, groups, parts } = *self;
        let refuse = |what, expected: String, got: String| Error::InvalidArgument {
            op: "load_weight",
            what,
            expected: format!("{expected} for {name}"),
            got,
        };
        let WeightFormat::Float(dtype) = format;
        if dtype == DType::U32 {
            return Err(refuse("format", "a float type".into(), format.to_string()));
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
}

//! What a weight is made of, checked once for every backend. It knows no layout.

use crate::{DType, Error, HostTensor, QuantisedTensor, Result, WeightFormat};

/// The tensors of a checkpoint that become one weight. `parts` are split evenly over `groups`; those of a group are concatenated
/// along their rows: q, k and v of a fused projection, or gate and up of each expert.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// For errors: the names of the tensors.
    pub name: &'a str,
    /// Matrices: experts, or 1.
    pub groups: usize,
    /// Their tensors, in the order of groups.
    pub parts: Parts<'a>,
}

/// The tensors of a weight, which are all of one kind.
#[derive(Clone, Copy)]
pub enum Parts<'a> {
    /// For formats of floats.
    Float(&'a [HostTensor<'a>]),
    /// For quantised formats, in exactly the weight's.
    Quantised(&'a [QuantisedTensor<'a>]),
}

impl<'a> WeightSource<'a> {
    /// One matrix of floats.
    pub fn matrix(name: &'a str, parts: &'a [HostTensor<'a>]) -> Self {
        Self::matrices(name, 1, parts)
    }

    /// As many matrices of floats as there are `groups`.
    pub fn matrices(name: &'a str, groups: usize, parts: &'a [HostTensor<'a>]) -> Self {
        Self { name, groups, parts: Parts::Float(parts) }
    }

    /// As many quantised matrices.
    pub fn quantised(name: &'a str, groups: usize, parts: &'a [QuantisedTensor<'a>]) -> Self {
        Self { name, groups, parts: Parts::Quantised(parts) }
    }

    /// Rows and columns of a group's matrix, if the parts fit together and to `format`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with what does not fit.
    pub fn check(&self, format: WeightFormat) -> Result<(usize, usize)> {
        match (self.parts, format) {
            (Parts::Float(parts), WeightFormat::Float(dtype)) if dtype != DType::U32 => {
                let shape = self.check_shapes(parts.iter().map(|part| (part.rows, part.cols)))?;
                parts.iter().enumerate().try_for_each(|(index, part)| self.check_floats(index, part))?;
                Ok(shape)
            }
            (Parts::Quantised(parts), WeightFormat::Quantised(quantised)) => {
                let sound = quantised.scales_fit()
                    && (1..=8).contains(&quantised.codebook.bits())
                    && quantised.input != DType::U32;
                if !sound {
                    let expected = "codes of 1 to 8 bits and float scales, groups of 8 or more that divide super-blocks of 256, or zero points (or powers of \
                                    two) of groups of a multiple of 8";
                    return Err(self.refuse("format", expected, format));
                }
                self.check_shapes(parts.iter().map(|part| (part.rows, part.cols)))
            }
            (Parts::Float(_), _) => Err(self.refuse("format", "a float type", format)),
            (Parts::Quantised(_), _) => Err(self.refuse("format", "a quantised format", format)),
        }
    }

    /// Rows and columns of a group's matrix of parts of these shapes.
    fn check_shapes(&self, shapes: impl Iterator<Item = (usize, usize)>) -> Result<(usize, usize)> {
        let (shapes, groups): (Vec<_>, usize) = (shapes.collect(), self.groups);
        if groups == 0 || shapes.is_empty() || !shapes.len().is_multiple_of(groups) {
            let expected = format!("a positive multiple of {groups} groups");
            return Err(self.refuse("parts", &expected, shapes.len()));
        }
        let first = &shapes[..shapes.len() / groups];
        let k = first[0].1;
        let n: usize = first.iter().map(|&(rows, _)| rows).sum();
        if n == 0 || k == 0 {
            return Err(self.refuse("shape", "at least one row and column", format_args!("[{n}, {k}]")));
        }
        for (index, &(rows, cols)) in shapes.iter().enumerate() {
            let like = first[index % first.len()].0;
            if cols != k || rows != like {
                let expected = format!("[{like}, {k}] in part {index}");
                return Err(self.refuse("part", &expected, format_args!("[{rows}, {cols}]")));
            }
        }
        Ok((n, k))
    }

    fn check_floats(&self, index: usize, part: &HostTensor<'_>) -> Result<()> {
        if part.dtype == DType::U32 {
            return Err(self.refuse("part", &format!("floats in part {index}"), part.dtype));
        }
        let expected = part.rows * part.cols * part.dtype.size();
        if part.bytes.len() != expected {
            let expected = format!("{expected} bytes in part {index}");
            return Err(self.refuse("part", &expected, format_args!("{} bytes", part.bytes.len())));
        }
        Ok(())
    }

    fn refuse(&self, what: &'static str, expected: &str, got: impl ToString) -> Error {
        let expected = format!("{expected} for {}", self.name);
        Error::InvalidArgument { op: "load_weight", what, expected, got: got.to_string() }
    }
}

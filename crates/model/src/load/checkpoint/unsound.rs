//! Which tensor of a quantised matrix has what is no number: looked for when a scale is none. It knows no spelling.

use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::{Checkpoint, Entry, float_type};

impl Checkpoint {
    /// The file and the tensor; the matrix, if it is none of its tensors alone.
    pub(crate) fn unsound(&self, matrix: &str) -> (PathBuf, String) {
        let is_part = |name: &str| name.strip_prefix(matrix).is_some_and(|end| end.starts_with(['.', '_']));
        let is_of_matrix =
            |(name, entry): &(&String, &Entry)| is_part(name) || entry.in_file.as_deref() == Some(matrix);
        let mut parts: Vec<(&String, &Entry)> = self.tensors.iter().filter(is_of_matrix).collect();
        parts.sort_by_key(|(name, _)| *name);
        match parts.iter().find(|(name, entry)| self.has_no_number(name, entry)) {
            Some((name, entry)) => (self.path_of(entry).to_owned(), self.in_file(name)),
            None => {
                let path = parts.first().map(|(_, entry)| self.path_of(entry).to_owned());
                (path.unwrap_or_else(|| self.weights_path()), matrix.to_owned())
            }
        }
    }

    fn has_no_number(&self, name: &str, entry: &Entry) -> bool {
        let bytes = self.bytes_of(entry);
        match (entry.dtype, float_type(entry.dtype)) {
            (_, Some(dtype)) => bytes.chunks(1 << 16).any(|chunk| dtype.decode(chunk).iter().any(|v| !v.is_finite())),
            (Dtype::F8_E4M3, _) => bytes.iter().any(|byte| byte & 0x7f == 0x7f),
            // Powers of two.
            (Dtype::U8 | Dtype::F8_E8M0, _) => name.contains("scale") && bytes.contains(&u8::MAX),
            _ => false,
        }
    }
}

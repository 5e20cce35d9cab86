//! Act-order: columns were quantised by their weight in the result, so that the columns of a group lie anywhere. They are read group after
//! group, as those of all other matrices are; activations follow.

use safetensors::tensor::Dtype;

use super::Wanted;
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::Order;

/// GPTQ's name of the tensor with the group of each column.
pub(super) const GPTQ: &str = "g_idx";
/// That of compressed-tensors.
pub(super) const COMPRESSED: &str = "weight_g_idx";
/// What compressed-tensors has of every column if it never chose an order.
const NO_GROUP: i32 = -1;

impl Checkpoint {
    /// The order in which the columns of each group are one after the other; `None` if they are in the file.
    pub(super) fn order(
        &self,
        wanted: Wanted<'_>,
        suffix: &str,
        group_size: usize,
    ) -> Result<Option<Order>, LoadError> {
        let Some(view) = self.part(wanted, suffix) else { return Ok(None) };
        let bytes = self.typed(wanted, suffix, Dtype::I32, &[wanted.cols])?;
        let groups: Vec<i32> = bytes.as_chunks().0.iter().map(|&group| i32::from_le_bytes(group)).collect();
        if suffix == COMPRESSED && groups.iter().all(|&group| group == NO_GROUP) {
            return Ok(None);
        }
        // That of compressed-tensors is told by the scales.
        let of_config = match suffix {
            GPTQ => format!(" and {}, whose group_size must be theirs", self.method_file),
            _ => String::new(),
        };
        let columns = by_groups(&groups, group_size).map_err(|fault| LoadError::Packing {
            path: self.weights_path(),
            tensor: view.name.clone(),
            got: fault,
            expected: format!(
                "{} groups of {group_size} columns each, of which the last may have fewer: download the weights again{of_config}",
                wanted.cols.div_ceil(group_size)
            ),
        })?;
        let is_of_file = columns.is_sorted();
        Ok((!is_of_file).then(|| Order { tensor: view.name, columns: columns.into() }))
    }
}

/// Columns in the order of their groups, and those of a group in that of the file; or which is wrong.
fn by_groups(groups: &[i32], group_size: usize) -> Result<Vec<u32>, String> {
    let mut columns = vec![Vec::new(); groups.len().div_ceil(group_size)];
    for (column, &group) in groups.iter().enumerate() {
        match usize::try_from(group).ok().and_then(|group| columns.get_mut(group)) {
            Some(of_group) => of_group.push(column as u32),
            None => return Err(format!("a list with column {column} in group {group}")),
        }
    }
    for (group, (of_group, whole)) in columns.iter().zip(groups.chunks(group_size)).enumerate() {
        if of_group.len() != whole.len() {
            return Err(format!("a list with {} columns in group {group}", of_group.len()));
        }
    }
    Ok(columns.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_sorted_by_groups_that_are_full() {
        assert_eq!(by_groups(&[0, 0, 0, 1, 1], 3), Ok(vec![0, 1, 2, 3, 4]));
        assert_eq!(by_groups(&[1, 0, 2, 0, 1], 2), Ok(vec![1, 3, 0, 4, 2]));
        for (groups, fault) in [
            ([0, 0, 1, 1, 3], "column 4 in group 3"),
            ([0, -1, 1, 1, 2], "column 1 in group -1"),
            ([0, 0, 0, 1, 2], "3 columns in group 0"),
            ([0, 0, 1, 2, 2], "1 columns in group 1"),
        ] {
            assert!(by_groups(&groups, 2).unwrap_err().ends_with(fault), "{groups:?}");
        }
    }
}

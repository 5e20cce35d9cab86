//! Rows of the token table, read back from the matmul's panels: the table may also be the output head, and is kept once.

use vllm_apple_ops::{Embedding, Error, Result};

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::pack::PackedMatrix;
use crate::rows::for_rows;

pub(crate) fn run(backend: &CpuBackend, op: Embedding<'_, Memory, PackedMatrix>) -> Result<()> {
    let table = op.table.packed();
    let ids: &[u32] = &elements(op.ids, 1)[..op.rows];
    if let Some(id) = ids.iter().find(|&&id| id as usize >= table.n()) {
        return Err(Error::InvalidArgument {
            op: vllm_apple_ops::embedding::NAME,
            what: "ids",
            expected: format!("below {}", table.n()),
            got: id.to_string(),
        });
    }
    let out: &mut [f32] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        for (row, &id) in out.chunks_exact_mut(table.k()).zip(&ids[first..]) {
            table.row(0, id as usize, row);
            row.iter_mut().for_each(|v| *v *= op.scale);
        }
    });
    Ok(())
}

//! The ops that read weights, on the host: the token table and linear layers. Weights are decoded row by row.

use vllm_apple_ops::*;

use super::host::Host;
use crate::gpu::Gpu;
use crate::recorder::region::Region;
use crate::weight;
use crate::weight::{PackedWeight, Row};

pub(crate) fn embedding<G: Gpu>(host: &Host<'_, G>, op: Embedding<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    let row = |&id: &u32| weight::row(host.recorder, op.table, 0, id as usize).values();
    let out: Vec<f32> = host.integers(op.ids, op.rows).iter().flat_map(row).map(|v| v * op.scale).collect();
    host.put(op.out, &out);
    Ok(())
}

pub(crate) fn matmul<G: Gpu>(host: &Host<'_, G>, op: Matmul<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    let (n, k) = (op.weight.rows(), op.weight.cols());
    let x = host.floats(op.x, op.rows);
    let bias = op.bias.map(|bias| host.floats(bias, 1));
    let rows: Vec<Row<'_>> = (0..n).map(|i| weight::row(host.recorder, op.weight, 0, i)).collect();
    let columns = host.parallel(n, |i| {
        let bias = bias.as_ref().map_or(&[][..], |bias| &bias[i..=i]);
        matmul::reference(&x, &rows[i].values(), bias, k)
    });
    put_columns(host, op.out, op.rows, op.first, &columns);
    Ok(())
}

pub(crate) fn grouped_matmul<G: Gpu>(
    host: &Host<'_, G>,
    op: GroupedMatmul<'_, Region<G>, PackedWeight<G>>,
) -> Result<()> {
    let (groups, n, k) = (op.weight.groups(), op.weight.rows(), op.weight.cols());
    let pairs_per_row = op.pairs_per_row;
    let ids = host.integers(op.ids, op.tokens * op.ids.cols());
    let x = host.floats(op.x, ids.len() / pairs_per_row);
    let bias = op.bias.map(|bias| host.floats(bias, groups));
    let rows: Vec<Vec<Row<'_>>> =
        (0..groups).map(|group| (0..n).map(|i| weight::row(host.recorder, op.weight, group, i)).collect()).collect();
    let columns = host.parallel(n, |i| {
        let mut column = vec![0.0; ids.len()];
        for (group, rows) in rows.iter().enumerate() {
            let mut pairs = (0..ids.len()).filter(|&pair| ids[pair] as usize == group).peekable();
            if pairs.peek().is_none() {
                continue;
            }
            let row = rows[i].values();
            let bias = bias.as_ref().map_or(&[][..], |bias| &bias[group * n + i..][..1]);
            for pair in pairs {
                column[pair] = matmul::reference(&x[pair / pairs_per_row * k..][..k], &row, bias, k)[0];
            }
        }
        column
    });
    put_columns(host, op.out, ids.len(), op.first, &columns);
    Ok(())
}

/// Makes `columns`, each of `rows` elements, those of `out` from `first` on.
fn put_columns<G: Gpu>(
    host: &Host<'_, G>,
    out: &mut Tensor<Region<G>>,
    rows: usize,
    first: usize,
    columns: &[Vec<f32>],
) {
    let (mut values, cols) = (host.floats(out, rows), out.cols());
    for (i, column) in columns.iter().enumerate() {
        values[first + i..].iter_mut().step_by(cols).zip(column).for_each(|(to, &value)| *to = value);
    }
    host.put(out, &values);
}

//! Compiles fixtures: the front end and the shim, without running a kernel.

use msl_sim::compile::{self, Binary, CompileError, Instrument, Source};

fn compile_fixture(name: &str, text: &str, instrument: Instrument) -> Result<Binary, CompileError> {
    compile::compile(&Source { name, text, include_dirs: &[], defines: &[] }, instrument)
}

#[test]
fn the_whole_vocabulary_compiles_without_a_word() {
    if !compile::clang_available() {
        return;
    }
    for instrument in [Instrument::None, Instrument::Accesses] {
        let result = compile_fixture("vocabulary.metal", include_str!("fixtures/vocabulary.metal"), instrument);
        let binary = result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(binary.lints, []);
        assert!(binary.path.is_file());
    }
}

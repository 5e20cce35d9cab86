//! A kernel function, loaded with its constants: Metal's compute pipeline state. It knows what a library says of its functions,
//! and not how to run them.

use std::ffi::{CStr, c_void};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use crate::Binary;
use crate::abi::{self, MslArguments, MslBind, MslEntries, MslEntry};
use crate::checker::symbols::Symbols;
use crate::runtime::{MAX_THREADS, host};

/// Value of `[[function_constant(index)]]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constant {
    /// `bool`
    Bool(bool),
    /// `ushort`
    U16(u16),
    /// `short`
    I16(i16),
    /// `uint`
    U32(u32),
    /// `int`
    I32(i32),
    /// `ulong`
    U64(u64),
    /// `float`
    F32(f32),
    /// Deliberately without a value: `is_function_constant_defined` is false.
    Undefined,
}

impl Constant {
    fn bytes(&self) -> Option<&[u8]> {
        Some(match self {
            // SAFETY: a bool is one initialised byte.
            Self::Bool(value) => unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), 1) },
            Self::U16(value) => bytemuck::bytes_of(value),
            Self::I16(value) => bytemuck::bytes_of(value),
            Self::U32(value) => bytemuck::bytes_of(value),
            Self::I32(value) => bytemuck::bytes_of(value),
            Self::U64(value) => bytemuck::bytes_of(value),
            Self::F32(value) => bytemuck::bytes_of(value),
            Self::Undefined => return None,
        })
    }
}

/// The constants of a pipeline, and what was wrong with how the library asked for them.
#[derive(Debug)]
pub struct Constants {
    values: Vec<(u32, Constant)>,
    complaints: Mutex<Vec<LoadError>>,
}

impl Constants {
    /// The bytes of a constant that the library takes to be `size` bytes long; with `size` 0, whether it has a value.
    pub(crate) fn read(&self, index: u32, size: usize) -> Option<&[u8]> {
        let value = self.values.iter().find(|(i, _)| *i == index).map(|(_, value)| value);
        let bytes = value.and_then(Constant::bytes);
        match (value, bytes) {
            (_, Some(_)) if size == 0 => Some(&[]),
            (_, Some(bytes)) if bytes.len() == size => Some(bytes),
            (Some(&value), Some(_)) => self.complain(LoadError::ConstantSize { index, size, value }),
            (None, _) if size != 0 => self.complain(LoadError::MissingConstant { index }),
            _ => None,
        }
    }

    fn complain(&self, error: LoadError) -> Option<&[u8]> {
        self.complaints.lock().expect("nobody panics with it").push(error);
        None
    }
}

/// Why a pipeline cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The library could not be written to a file of its own, or not be loaded.
    #[error("cannot load the compiled library: {0}")]
    Library(String),
    /// There is no such function.
    #[error("there is no kernel named {name:?}; there are: {}", available.join(", "))]
    MissingFunction {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        available: Vec<String>,
    },
    /// The library has a function constant that no value was given for.
    #[error(
        "[[function_constant({index})]] has no value: give it one, or `Constant::Undefined` if the kernel asks whether it has one"
    )]
    MissingConstant {
        /// Its index.
        index: u32,
    },
    /// The value is of another size than the constant.
    #[error("[[function_constant({index})]] is {size} bytes long in the source, but {value:?} was given")]
    ConstantSize {
        /// Its index.
        index: u32,
        /// Size of its type in the source, in bytes.
        size: usize,
        /// The value that was given.
        value: Constant,
    },
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Library(error.to_string())
    }
}

impl From<libloading::Error> for LoadError {
    fn from(error: libloading::Error) -> Self {
        Self::Library(error.to_string())
    }
}

/// What a parameter of a kernel is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// `[[buffer(n)]]`
    Buffer {
        /// Neither `const` nor in the constant address space.
        writable: bool,
    },
    /// `[[threadgroup(n)]]`
    Threadgroup,
    /// A position or a size that the device knows.
    Builtin,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source.
    pub name: String,
    /// What it is bound to.
    pub kind: ParameterKind,
    /// The n of `[[buffer(n)]]` or `[[threadgroup(n)]]`.
    pub index: usize,
    /// Bytes of what it points to; 0 of a [`ParameterKind::Builtin`].
    pub size: usize,
}

impl Parameter {
    /// Whether it takes threadgroup memory, or else a buffer.
    pub(crate) fn binds(&self, threadgroup: bool) -> bool {
        match self.kind {
            ParameterKind::Buffer { .. } => !threadgroup,
            ParameterKind::Threadgroup => threadgroup,
            ParameterKind::Builtin => false,
        }
    }
}

/// A kernel function with its constants, ready to be dispatched.
#[derive(Debug)]
pub struct Pipeline {
    name: String,
    parameters: Vec<Parameter>,
    max_threads: u32,
    pub(crate) constants: Constants,
    pub(crate) invoke: unsafe extern "C" fn(*const MslArguments),
    pub(crate) symbols: Symbols,
    pub(crate) instrumented: bool,
    /// Keeps `invoke` and all strings of the library alive.
    _library: libloading::Library,
}

impl Pipeline {
    /// Loads `function` out of a compiled library, with these constants. Every constant of the library must have a value, whether
    /// this function uses it or not.
    ///
    /// # Errors
    /// [`LoadError`]
    pub fn new(binary: &Binary, function: &str, constants: &[(u32, Constant)]) -> Result<Self, LoadError> {
        Self::from_library(&std::fs::read(&binary.path)?, function, constants)
    }

    /// As [`Pipeline::new`], from the bytes of the library.
    ///
    /// # Errors
    /// [`LoadError`]
    pub fn from_library(library: &[u8], function: &str, constants: &[(u32, Constant)]) -> Result<Self, LoadError> {
        // Each pipeline loads a file of its own: the loader knows files that it has seen, and would hand out the library that it
        // has, with the constants of the first.
        let mut file = tempfile::Builder::new().prefix("msl-sim-").suffix(".so").tempfile()?;
        file.write_all(library)?;
        file.flush()?;
        let constants = Constants { values: constants.to_vec(), complaints: Mutex::default() };
        // SAFETY: the front end compiled it, and all that its initialisers do is to prepare tables.
        unsafe { Self::load(library, file.path(), function, constants) }
    }

    /// # Safety
    /// The file at `path` holds `bytes`, which the front end compiled.
    unsafe fn load(bytes: &[u8], path: &Path, function: &str, constants: Constants) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise; the symbols' types are those of msl_abi.h.
        unsafe {
            let library = libloading::Library::new(path)?;
            let bind: MslBind = *library.get(b"msl_bind")?;
            host::with_constants(&constants, || bind(&host::HOST));
            if let Some(complaint) = constants.complaints.lock().expect("nobody panics with it").drain(..).next() {
                return Err(complaint);
            }
            let entries: MslEntries = *library.get(b"msl_entries")?;
            let mut count = 0;
            let first = entries(&mut count);
            let entries = std::slice::from_raw_parts(first, count);
            let name = |entry: &MslEntry| CStr::from_ptr(entry.name).to_string_lossy().into_owned();
            let Some(entry) = entries.iter().find(|entry| name(entry) == function) else {
                let available = entries.iter().map(name).collect();
                return Err(LoadError::MissingFunction { name: function.to_owned(), available });
            };
            Ok(Self {
                name: function.to_owned(),
                parameters: parameters(entry),
                max_threads: match entry.max_threads {
                    0 => MAX_THREADS as u32,
                    limit => limit.min(MAX_THREADS as u32),
                },
                constants,
                invoke: entry.invoke,
                symbols: Symbols::new(bytes, entry.invoke as *const c_void),
                instrumented: library.get::<*const u32>(b"msl_instrumented").is_ok(),
                _library: library,
            })
        }
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The function's parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The most threads that a threadgroup of this pipeline may have.
    pub fn max_total_threads_per_threadgroup(&self) -> u32 {
        self.max_threads
    }

    /// Lowers the most threads that a threadgroup may have, as a GPU does whose registers do not suffice for more than the kernel's own
    /// `[[max_total_threads_per_threadgroup(n)]]`.
    ///
    /// # Panics
    /// If it is 0 or more than 1024.
    pub fn set_max_total_threads_per_threadgroup(&mut self, threads: u32) {
        assert!((1..=MAX_THREADS as u32).contains(&threads), "{threads} threads per threadgroup");
        self.max_threads = self.max_threads.min(threads);
    }
}

/// # Safety
/// The entry is a library's own.
unsafe fn parameters(entry: &MslEntry) -> Vec<Parameter> {
    // SAFETY: the entry says how many parameters it has.
    let parameters = unsafe { std::slice::from_raw_parts(entry.parameters, entry.parameter_count as usize) };
    let convert = |parameter: &abi::MslParameter| Parameter {
        // SAFETY: parameters are named by strings.
        name: unsafe { CStr::from_ptr(parameter.name) }.to_string_lossy().into_owned(),
        kind: match parameter.kind {
            abi::PARAMETER_BUFFER => ParameterKind::Buffer { writable: parameter.writable != 0 },
            abi::PARAMETER_THREADGROUP => ParameterKind::Threadgroup,
            _ => ParameterKind::Builtin,
        },
        index: parameter.index as usize,
        size: parameter.size as usize,
    };
    parameters.iter().map(convert).collect()
}

//! `MTLLibrary` and `MTLFunction`. It knows no pipeline.

use msl_sim::{Binary, Constant, Instrument, Source};
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_metal::{MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode};

use super::descriptors::{CompileOptions, FunctionConstantValues};
use super::machine::{Speed, machine};
use super::{require, wants_pool};
use crate::foundation::{Error, Text, say};

const DOMAIN: &str = "MTLLibraryErrorDomain";
/// `MTLLibraryErrorCompileFailure`, `MTLLibraryErrorCompileWarning`, `MTLLibraryErrorFunctionNotFound`
const FAILURE: isize = 3;
const WARNING: isize = 4;
const NOT_FOUND: isize = 5;

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimLibrary"]
    #[ivars = Binary]
    pub(crate) struct Library;

    impl Library {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _: Option<&Text>) {}

        #[unsafe(method_id(newFunctionWithName:constantValues:error:))]
        fn new_function(
            &self,
            name: &Text,
            values: &FunctionConstantValues,
            error: *mut *mut Error,
        ) -> Option<Retained<Function>> {
            wants_pool("newFunctionWithName:constantValues:error:");
            let constants = values.ivars().borrow().clone();
            let name = name.as_str().to_owned();
            // Made to see whether it can be.
            let tried = msl_sim::Pipeline::new(self.ivars(), &name, &constants).map_err(|error| error.to_string());
            say(tried, DOMAIN, NOT_FOUND, error).map(|_| {
                let content = Specialised { binary: self.ivars().clone(), name, constants };
                // SAFETY: NSObject's init takes nothing.
                unsafe { msg_send![super(Function::alloc().set_ivars(content)), init] }
            })
        }
    }
);

impl Library {
    pub fn compile(text: &str, options: Option<&CompileOptions>, error: *mut *mut Error) -> Option<Retained<Self>> {
        check(options);
        let instrument = match machine().speed {
            Speed::Checked => Instrument::Accesses,
            Speed::Fast => Instrument::None,
        };
        let fault = machine().compiler_faults.pop_front();
        if let Some(words) = fault {
            return say(Err(words), DOMAIN, FAILURE, error);
        }
        let source = Source { name: "program_source", text, include_dirs: &[], defines: &[] };
        let compiled = msl_sim::compile(&source, instrument).map_err(|error| error.to_string());
        let binary = say(compiled, DOMAIN, FAILURE, error)?;
        if !binary.lints.is_empty() {
            let words: Vec<String> = binary.lints.iter().map(ToString::to_string).collect();
            Error::put(error, DOMAIN, WARNING, &words.join("\n"));
        }
        // SAFETY: NSObject's init takes nothing.
        Some(unsafe { msg_send![super(Self::alloc().set_ivars(binary)), init] })
    }
}

/// msl-sim computes as the kernels are written, so it is the caller who must have asked for that.
fn check(options: Option<&CompileOptions>) {
    let Some(options) = options.map(CompileOptions::ivars) else {
        return crate::runtime::violation("compiled without options: with fast math, in the default language");
    };
    let (language, math, functions) = (options.language.get(), options.math.get(), options.functions.get());
    require(language >= MTLLanguageVersion::Version3_1, || format!("language {language:?} has no bfloat"));
    require(math == MTLMathMode::Safe, || format!("{math:?} is not as written"));
    require(functions == MTLMathFloatingPointFunctions::Precise, || format!("{functions:?} are not precise"));
}

/// A function with its constants.
pub(crate) struct Specialised {
    pub binary: Binary,
    pub name: String,
    pub constants: Vec<(u32, Constant)>,
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimFunction"]
    #[ivars = Specialised]
    pub(crate) struct Function;
);

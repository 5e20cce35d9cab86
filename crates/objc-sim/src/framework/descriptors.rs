//! Plain objects that say how something is to be made.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::NonNull;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::NSObject;
use objc2::{DefinedClass, define_class, msg_send};
use objc2_metal::{MTLDataType, MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode};

use super::{Archive, Function, require};
use crate::foundation::{Array, Text, Url};
use crate::runtime::violation;

/// What a library is compiled with; Metal's own choices until said otherwise.
pub(crate) struct Options {
    pub language: Cell<MTLLanguageVersion>,
    pub math: Cell<MTLMathMode>,
    pub functions: Cell<MTLMathFloatingPointFunctions>,
}

macro_rules! plain {
    ($class:ident, $name:literal, $ivars:ty, $new:expr, { $($methods:tt)* }) => {
        define_class!(
            // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
            #[unsafe(super(NSObject))]
            #[name = $name]
            #[ivars = $ivars]
            pub(crate) struct $class;

            impl $class {
                #[unsafe(method_id(init))]
                fn init(this: Allocated<Self>) -> Retained<Self> {
                    // SAFETY: NSObject's init takes nothing.
                    unsafe { msg_send![super(this.set_ivars($new)), init] }
                }

                $($methods)*
            }
        );
    };
}

plain!(
    CompileOptions,
    "MTLCompileOptions",
    Options,
    Options {
        language: Cell::new(MTLLanguageVersion(0)),
        math: Cell::new(MTLMathMode::Fast),
        functions: Cell::new(MTLMathFloatingPointFunctions::Fast),
    },
    {
        #[unsafe(method(setLanguageVersion:))]
        fn set_language(&self, version: MTLLanguageVersion) {
            self.ivars().language.set(version);
        }

        #[unsafe(method(setMathMode:))]
        fn set_math(&self, mode: MTLMathMode) {
            self.ivars().math.set(mode);
        }

        #[unsafe(method(setMathFloatingPointFunctions:))]
        fn set_functions(&self, functions: MTLMathFloatingPointFunctions) {
            self.ivars().functions.set(functions);
        }
    }
);

#[derive(Default)]
pub(crate) struct Pipeline {
    pub function: RefCell<Option<Retained<Function>>>,
    pub threads: Cell<usize>,
    archives: RefCell<Option<Retained<Array>>>,
}

plain!(ComputePipelineDescriptor, "MTLComputePipelineDescriptor", Pipeline, Pipeline::default(), {
    #[unsafe(method(setLabel:))]
    fn set_label(&self, _: Option<&Text>) {}

    #[unsafe(method(setComputeFunction:))]
    fn set_function(&self, function: Option<&Function>) {
        *self.ivars().function.borrow_mut() = function.map(objc2::Message::retain);
    }

    #[unsafe(method(setMaxTotalThreadsPerThreadgroup:))]
    fn set_threads(&self, threads: usize) {
        require(threads <= 1024, || format!("maxTotalThreadsPerThreadgroup {threads} exceeds 1024"));
        require(threads > 32, || {
            format!("maxTotalThreadsPerThreadgroup {threads}: barriers may be dropped, MoltenVK #2711")
        });
        self.ivars().threads.set(threads);
    }

    #[unsafe(method(setBinaryArchives:))]
    fn set_archives(&self, archives: Option<&Array>) {
        *self.ivars().archives.borrow_mut() = archives.map(objc2::Message::retain);
    }
});

impl ComputePipelineDescriptor {
    pub fn archives(&self) -> Vec<Retained<Archive>> {
        let archives = self.ivars().archives.borrow();
        let archives = archives.iter().flat_map(|array| array.objects());
        // SAFETY: the property's type.
        archives.map(|object| unsafe { Retained::cast_unchecked(object.clone()) }).collect()
    }
}

plain!(
    FunctionConstantValues,
    "MTLFunctionConstantValues",
    RefCell<Vec<(u32, msl_sim::Constant)>>,
    RefCell::default(),
    {
        #[unsafe(method(setConstantValue:type:atIndex:))]
        fn set(&self, value: NonNull<c_void>, kind: MTLDataType, index: usize) {
            // SAFETY: the method's contract: a value of the type.
            let value = unsafe {
                match kind {
                    MTLDataType::UInt => msl_sim::Constant::U32(value.cast().read()),
                    MTLDataType::Bool => msl_sim::Constant::Bool(value.cast::<u8>().read() != 0),
                    MTLDataType::Float => msl_sim::Constant::F32(value.cast().read()),
                    _ => return violation(format!("constants of type {kind:?} are not simulated")),
                }
            };
            require(index < 65536, || format!("function constant {index}: there are 65536"));
            let mut values = self.ivars().borrow_mut();
            values.retain(|(i, _)| *i as usize != index);
            values.push((index as u32, value));
        }
    }
);

plain!(BinaryArchiveDescriptor, "MTLBinaryArchiveDescriptor", RefCell<Option<PathBuf>>, RefCell::default(), {
    #[unsafe(method(setUrl:))]
    fn set_url(&self, url: Option<&Url>) {
        *self.ivars().borrow_mut() = url.map(|url| url.path().to_owned());
    }
});

impl BinaryArchiveDescriptor {
    pub fn path(&self) -> Option<PathBuf> {
        self.ivars().borrow().clone()
    }
}

plain!(ResidencySetDescriptor, "MTLResidencySetDescriptor", (), (), {
    #[unsafe(method(setLabel:))]
    fn set_label(&self, _: Option<&Text>) {}
});

//! Classes: their methods, instance variables and names. It knows no object.
//!
//! Code that was compiled against a class names it by a symbol (`_OBJC_CLASS_NSString`), so each class that gpu/apple names is a static
//! here, which is filled in when the first of them is used.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError, RwLock};

use objc2::runtime::{Bool, Imp, Sel};

/// What a pointer to a class points to. Begins as objects do.
#[repr(C)]
pub struct Class {
    isa: AtomicPtr<Class>,
    body: AtomicPtr<Body>,
}

/// What a class is once it is filled in.
pub struct Body {
    pub name: CString,
    pub superclass: *const Class,
    pub meta: bool,
    methods: RwLock<HashMap<Sel, &'static Method>>,
    ivars: Mutex<Vec<&'static Ivar>>,
    size: AtomicUsize,
}

/// A method of a class.
pub struct Method {
    name: Sel,
    pub imp: Imp,
    types: CString,
}

struct Ivar {
    name: CString,
    offset: usize,
}

macro_rules! known {
    ($($symbol:literal $name:literal $class:ident)*) => {
        $(#[unsafe(export_name = $symbol)] static $class: Class = Class::new();)*
        const KNOWN: &[(&CStr, &Class)] = &[$(($name, &$class)),*];
    };
}

known! {
    "_OBJC_CLASS_NSObject" c"NSObject" NS_OBJECT
    "_OBJC_CLASS_NSArray" c"NSArray" NS_ARRAY
    "_OBJC_CLASS_NSError" c"NSError" NS_ERROR
    "_OBJC_CLASS_NSProcessInfo" c"NSProcessInfo" NS_PROCESS_INFO
    "_OBJC_CLASS_NSString" c"NSString" NS_STRING
    "_OBJC_CLASS_NSURL" c"NSURL" NS_URL
    "_OBJC_CLASS_MTLBinaryArchiveDescriptor" c"MTLBinaryArchiveDescriptor" BINARY_ARCHIVE_DESCRIPTOR
    "_OBJC_CLASS_MTLCompileOptions" c"MTLCompileOptions" COMPILE_OPTIONS
    "_OBJC_CLASS_MTLComputePipelineDescriptor" c"MTLComputePipelineDescriptor" COMPUTE_PIPELINE_DESCRIPTOR
    "_OBJC_CLASS_MTLFunctionConstantValues" c"MTLFunctionConstantValues" FUNCTION_CONSTANT_VALUES
    "_OBJC_CLASS_MTLResidencySetDescriptor" c"MTLResidencySetDescriptor" RESIDENCY_SET_DESCRIPTOR
}

fn classes() -> &'static Mutex<HashMap<CString, usize>> {
    static CLASSES: OnceLock<Mutex<HashMap<CString, usize>>> = OnceLock::new();
    CLASSES.get_or_init(Mutex::default)
}

/// Fills in the classes that are symbols, once.
pub fn load() {
    static LOADED: Once = Once::new();
    thread_local!(static LOADING: Cell<bool> = const { Cell::new(false) });
    // Filling in asks for what is filled in already: NSObject.
    if LOADED.is_completed() || LOADING.get() {
        return;
    }
    LOADED.call_once(|| {
        LOADING.set(true);
        super::object::define_ns_object(&NS_OBJECT);
        crate::foundation::load();
        crate::framework::load();
    });
}

impl Class {
    const fn new() -> Self {
        Self { isa: AtomicPtr::new(null_mut()), body: AtomicPtr::new(null_mut()) }
    }

    pub fn body(&self) -> &'static Body {
        let body = || self.body.load(Ordering::Acquire);
        if body().is_null() {
            load();
        }
        // SAFETY: bodies live for ever.
        unsafe { body().as_ref() }.expect("a class that the simulated frameworks do not have")
    }

    pub fn isa(&self) -> &'static Class {
        self.body();
        // SAFETY: set before the body, and classes live for ever.
        unsafe { &*self.isa.load(Ordering::Acquire) }
    }

    /// Makes it and its metaclass, which has no metaclass of its own here.
    pub fn fill(&'static self, name: &CStr, superclass: *const Class) {
        // SAFETY: classes live for ever.
        let parent = unsafe { superclass.as_ref() };
        let body = |meta: bool, superclass: *const Class, size: usize| {
            Box::into_raw(Box::new(Body {
                name: name.to_owned(),
                superclass,
                meta,
                methods: RwLock::default(),
                ivars: Mutex::default(),
                size: AtomicUsize::new(size),
            }))
        };
        let meta: &'static Class = Box::leak(Box::new(Self::new()));
        // A message to the class that no metaclass answers is one for the root class.
        let meta_parent = parent.map_or(std::ptr::from_ref(self), |parent| std::ptr::from_ref(parent.isa()));
        meta.isa.store(std::ptr::from_ref(meta).cast_mut(), Ordering::Release);
        meta.body.store(body(true, meta_parent, 0), Ordering::Release);
        let size = parent.map_or(size_of::<usize>(), |parent| parent.body().size.load(Ordering::Relaxed));
        self.isa.store(std::ptr::from_ref(meta).cast_mut(), Ordering::Release);
        self.body.store(body(false, superclass, size), Ordering::Release);
        let address = std::ptr::from_ref(self).addr();
        let before = classes().lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), address);
        assert!(before.is_none(), "two classes are named {name:?}");
    }

    pub fn add_method(&self, name: Sel, imp: Imp, types: &CStr) -> bool {
        let method = Box::leak(Box::new(Method { name, imp, types: types.to_owned() }));
        self.body().methods.write().unwrap_or_else(PoisonError::into_inner).insert(name, method).is_none()
    }

    pub fn find(&self, name: Sel) -> Option<&'static Method> {
        let body = self.body();
        let own = body.methods.read().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
        // SAFETY: classes live for ever.
        own.or_else(|| unsafe { body.superclass.as_ref() }?.find(name))
    }

    pub fn size(&self) -> usize {
        self.body().size.load(Ordering::Relaxed)
    }
}

/// # Safety
/// The name is a C string, and the superclass a class or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn objc_allocateClassPair(superclass: *const Class, name: *const c_char, _: usize) -> *const Class {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let class = known.map_or_else(|| -> &'static Class { Box::leak(Box::new(Class::new())) }, |(_, class)| class);
    class.fill(name, superclass);
    class
}

#[unsafe(no_mangle)]
extern "C" fn objc_registerClassPair(_: *const Class) {}

#[unsafe(no_mangle)]
extern "C" fn objc_disposeClassPair(_: *const Class) {
    unreachable!("a class was half made");
}

/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn objc_getClass(name: *const c_char) -> *const Class {
    load();
    let classes = classes().lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's promise.
    let address = classes.get(unsafe { CStr::from_ptr(name) });
    address.map_or(null(), |address| std::ptr::with_exposed_provenance(*address))
}

/// # Safety
/// A class, and a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn class_addMethod(class: &Class, name: Sel, imp: Imp, types: *const c_char) -> Bool {
    // SAFETY: the caller's promise.
    Bool::new(class.add_method(name, imp, unsafe { CStr::from_ptr(types) }))
}

/// # Safety
/// A class, and a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn class_addIvar(
    class: &Class,
    name: *const c_char,
    size: usize,
    align: u8,
    _: *const c_char,
) -> Bool {
    let body = class.body();
    let offset = body.size.load(Ordering::Relaxed).next_multiple_of(1 << align);
    body.size.store(offset + size, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    body.ivars.lock().unwrap_or_else(PoisonError::into_inner).push(Box::leak(Box::new(Ivar { name, offset })));
    Bool::YES
}

/// # Safety
/// A class, and a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn class_getInstanceVariable(class: &Class, name: *const c_char) -> *const c_void {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let body = class.body();
    let own = body.ivars.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|i| *i.name == *name).copied();
    match own {
        Some(ivar) => std::ptr::from_ref(ivar).cast(),
        // SAFETY: classes live for ever, and the caller's promise.
        None => unsafe {
            body.superclass.as_ref().map_or(null(), |parent| class_getInstanceVariable(parent, name.as_ptr()))
        },
    }
}

/// # Safety
/// What [`class_getInstanceVariable`] returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn ivar_getOffset(ivar: *const c_void) -> isize {
    // SAFETY: the caller's promise.
    unsafe { &*ivar.cast::<Ivar>() }.offset as isize
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceMethod(class: &Class, name: Sel) -> *const Method {
    class.find(name).map_or(null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
extern "C" fn class_getClassMethod(class: &Class, name: Sel) -> *const Method {
    class.isa().find(name).map_or(null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
extern "C" fn class_respondsToSelector(class: &Class, name: Sel) -> Bool {
    Bool::new(class.find(name).is_some())
}

#[unsafe(no_mangle)]
extern "C" fn method_getTypeEncoding(method: &Method) -> *const c_char {
    method.types.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn method_getName(method: &Method) -> Sel {
    method.name
}

#[unsafe(no_mangle)]
extern "C" fn class_getName(class: &Class) -> *const c_char {
    class.body().name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn class_getSuperclass(class: &Class) -> *const Class {
    class.body().superclass
}

#[unsafe(no_mangle)]
extern "C" fn class_isMetaClass(class: &Class) -> Bool {
    Bool::new(class.body().meta)
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceSize(class: &Class) -> usize {
    class.size()
}

/// There are no objects of protocols here, as in programs that no Objective-C compiler made: objc2 goes without.
#[unsafe(no_mangle)]
extern "C" fn objc_getProtocol(_: *const c_char) -> *const c_void {
    null()
}

#[unsafe(no_mangle)]
extern "C" fn class_addProtocol(_: &Class, _: *const c_void) -> Bool {
    Bool::NO
}

/// # Safety
/// The length is null or can be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn protocol_copyMethodDescriptionList(
    _: *const c_void,
    _: Bool,
    _: Bool,
    length: *mut c_uint,
) -> *const c_void {
    // SAFETY: the caller's promise.
    if let Some(length) = unsafe { length.as_mut() } {
        *length = 0;
    }
    null()
}

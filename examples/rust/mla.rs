// SPDX-License-Identifier: Apache-2.0
//! A safe wrapper of libmla_loader.so, which it loads at run time. Needs the standard library alone.
//! Errors carry the loader's sentence. A `Kernel` borrows its `Bundle`, so it cannot outlive it.
use crate::mla_abi::{Functions, KernelInfo, LaunchArgs, Problem, MLA_SUCCESS};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

#[link(name = "dl")]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// A status of the loader (0: the library or a symbol is missing) and a sentence.
#[derive(Debug)]
pub struct Error {
    pub status: i32,
    pub sentence: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} (status {})", self.sentence, self.status)
    }
}

impl std::error::Error for Error {}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the callers pass strings that end with NUL, or null.
    if pointer.is_null() { String::new() } else { unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned() }
}

fn c_string(value: &str) -> Result<CString, Error> {
    CString::new(value).map_err(|_| Error { status: 0, sentence: format!("{value:?} holds a NUL") })
}

/// A shared library, which stays in the process.
pub struct Library(*mut c_void);

impl Library {
    pub fn open(path: &str) -> Result<Self, Error> {
        const RTLD_NOW: c_int = 2;
        let path = c_string(path)?;
        // SAFETY: `path` lives through the call.
        let handle = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            return Err(Error { status: 0, sentence: text(unsafe { dlerror() }) });
        }
        Ok(Library(handle))
    }

    pub fn symbol(&self, name: &str) -> Result<*mut c_void, Error> {
        let name = c_string(name)?;
        // SAFETY: the handle is never closed.
        let address = unsafe { dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(Error { status: 0, sentence: text(unsafe { dlerror() }) });
        }
        Ok(address)
    }
}

pub struct Loader(Functions);

impl Loader {
    pub fn load(path: &str) -> Result<Self, Error> {
        let library = Library::open(path)?;
        // SAFETY: the symbols have the types of the header that the table was made from.
        Ok(Loader(unsafe { Functions::load(|name| library.symbol(name)) }?))
    }

    fn check(&self, status: i32) -> Result<(), Error> {
        if status == MLA_SUCCESS {
            return Ok(());
        }
        Err(Error { status, sentence: text(unsafe { (self.0.mla_last_error)() }) })
    }

    pub fn open(&self, path: &str) -> Result<Bundle<'_>, Error> {
        let path = c_string(path)?;
        let mut handle = null_mut();
        // SAFETY: the pointers live through the call; null options are allowed.
        self.check(unsafe { (self.0.mla_bundle_open)(path.as_ptr(), null(), &mut handle) })?;
        Ok(Bundle { loader: self, handle })
    }
}

/// An open bundle, closed when dropped.
pub struct Bundle<'a> {
    loader: &'a Loader,
    handle: *mut c_void,
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; kernels borrow the bundle and are gone.
        unsafe { (self.loader.0.mla_bundle_close)(self.handle) };
    }
}

impl Bundle<'_> {
    /// Index of the best kernel.
    pub fn select(&self, problem: &Problem) -> Result<u32, Error> {
        let mut index = 0;
        // SAFETY: the handle is open, the pointers live through the call.
        self.loader.check(unsafe { (self.loader.0.mla_select)(self.handle, problem, &mut index) })?;
        Ok(index)
    }

    pub fn kernel_id(&self, index: u32) -> Result<String, Error> {
        let mut info = KernelInfo::default();
        // SAFETY: as above; the string lives as long as the bundle and is copied.
        self.loader.check(unsafe { (self.loader.0.mla_bundle_get_kernel)(self.handle, index, &mut info) })?;
        Ok(text(info.id))
    }

    /// Loads a kernel in the current context.
    pub fn prepare(&self, index: u32) -> Result<Kernel<'_>, Error> {
        let mut handle = null_mut();
        // SAFETY: the handle is open; null options are allowed.
        self.loader.check(unsafe { (self.loader.0.mla_prepare_index)(self.handle, index, null(), &mut handle) })?;
        Ok(Kernel { loader: self.loader, handle })
    }

    pub fn workspace_bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: as above.
        self.loader.check(unsafe { (self.loader.0.mla_workspace_bytes)(self.handle, null(), &mut bytes) })?;
        Ok(bytes)
    }

    /// # Safety
    /// `workspace` must be `bytes` of device memory of the current context.
    pub unsafe fn workspace_init(&self, workspace: u64, bytes: u64, stream: *mut c_void) -> Result<(), Error> {
        self.loader.check((self.loader.0.mla_workspace_init)(self.handle, workspace, bytes, stream))
    }
}

/// A prepared kernel.
pub struct Kernel<'a> {
    loader: &'a Loader,
    handle: *mut c_void,
}

impl Kernel<'_> {
    /// # Safety
    /// The device addresses in `args` must be memory of the sizes that mla_loader.h gives, until the stream
    /// has run the launch, and the bundle must be open until then.
    pub unsafe fn launch(&self, args: &LaunchArgs, stream: *mut c_void) -> Result<(), Error> {
        self.loader.check((self.loader.0.mla_launch)(self.handle, args, stream))
    }
}

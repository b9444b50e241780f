// SPDX-License-Identifier: Apache-2.0
//! One decode step of MLA attention from Rust; every row is compared with the formula in f64.
//!
//!   rustc --edition 2021 -O decode.rs && ./decode path/to/libmla_loader.so path/to/bundle
mod mla;
mod mla_abi;

use mla::{Library, Loader};
use mla_abi::{LaunchArgs, Problem, MLA_ERROR_INVALID_ARGUMENT};
use std::error::Error;
use std::os::raw::{c_int, c_uint, c_void};
use std::ptr::null_mut;

const BATCH: usize = 2;
const HEADS: usize = 16;
const PAGE_SIZE: usize = 32;
const PAGES: usize = 9;
const MAX_PAGES: usize = 5;
const DIM_K: usize = 576;
const DIM_V: usize = 512;
const SEQ_LENS: [i32; BATCH] = [130, 7];
const PAGE_TABLE: [i32; BATCH * MAX_PAGES] = [6, 1, 3, 8, 2, 4, 0, 0, 0, 0];

/// Calls a function of the driver, and returns from here if it fails.
macro_rules! cuda {
    ($library:expr, $name:ident($($value:expr => $type:ty),*)) => {{
        let address = $library.symbol(stringify!($name))?;
        let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(address);
        let result = function($($value),*);
        if result != 0 {
            return Err(format!("{} returned error {result}", stringify!($name)).into());
        }
    }};
}

struct Driver(Library);

impl Driver {
    fn allocate(&self, bytes: usize) -> Result<u64, Box<dyn Error>> {
        let mut address = 0;
        unsafe { cuda!(self.0, cuMemAlloc_v2(&mut address => *mut u64, bytes => usize)) }
        Ok(address)
    }

    fn upload<T: Copy>(&self, data: &[T]) -> Result<u64, Box<dyn Error>> {
        let bytes = std::mem::size_of_val(data);
        let address = self.allocate(bytes)?;
        unsafe { cuda!(self.0, cuMemcpyHtoD_v2(address => u64, data.as_ptr() as *const c_void => *const c_void, bytes => usize)) }
        Ok(address)
    }

    fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Result<Vec<T>, Box<dyn Error>> {
        let mut data = vec![T::default(); count];
        let bytes = std::mem::size_of_val(&data[..]);
        unsafe { cuda!(self.0, cuMemcpyDtoH_v2(data.as_mut_ptr() as *mut c_void => *mut c_void, address => u64, bytes => usize)) }
        Ok(data)
    }
}

fn from_e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f64);
    let value = if exponent > 0 { (8.0 + mantissa) * 2f64.powi(exponent - 10) } else { mantissa * 2f64.powi(-9) };
    if code & 0x80 != 0 { -value } else { value }
}

fn token_at(request: usize, i: usize) -> usize {
    (PAGE_TABLE[request * MAX_PAGES + i / PAGE_SIZE] as usize * PAGE_SIZE + i % PAGE_SIZE) * DIM_K
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let scale = 1.0 / 192f64.sqrt(); // DeepSeek's heads have 128 + 64 elements before absorption
    let fields = mla_abi::check_layout()?;

    let path = std::env::var("MLA_CUDA_DRIVER_PATH").unwrap_or_else(|_| "libcuda.so.1".into());
    let driver = Driver(Library::open(&path)?);
    let (mut device, mut context, mut major, mut minor) = (0, null_mut(), 0, 0);
    unsafe {
        cuda!(driver.0, cuInit(0 => c_uint));
        cuda!(driver.0, cuDeviceGet(&mut device => *mut c_int, 0 => c_int));
        cuda!(driver.0, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, device => c_int));
        cuda!(driver.0, cuCtxSetCurrent(context => *mut c_void));
        cuda!(driver.0, cuDeviceGetAttribute(&mut major => *mut c_int, 75 => c_int, device => c_int));
        cuda!(driver.0, cuDeviceGetAttribute(&mut minor => *mut c_int, 76 => c_int, device => c_int));
    }

    let mut state: u64 = 1;
    let mut code = || { // magnitudes from 2^-3 to just below 2
        state = state * 16807 % 2147483647;
        (state >> 8 & 31 | 32 | (state >> 13 & 1) << 7) as u8
    };
    let q: Vec<u8> = (0..BATCH * HEADS * DIM_K).map(|_| code()).collect();
    let mut kv = vec![0x7fu8; PAGES * PAGE_SIZE * DIM_K]; // NaN wherever no request looks
    for request in 0..BATCH {
        for i in 0..SEQ_LENS[request] as usize {
            kv[token_at(request, i)..][..DIM_K].fill_with(&mut code);
        }
    }

    let loader = Loader::load(&arguments[1])?;
    let bundle = loader.open(&arguments[2])?;
    let problem = Problem {
        heads: HEADS as i32, page_size: PAGE_SIZE as i32, cc_major: major, cc_minor: minor, ..Default::default()
    };
    let index = bundle.select(&problem)?;
    println!("selected {}", bundle.kernel_id(index)?);
    let kernel = bundle.prepare(index)?;
    let workspace_bytes = bundle.workspace_bytes()?;
    let workspace = driver.allocate(workspace_bytes as usize)?;
    unsafe { bundle.workspace_init(workspace, workspace_bytes, null_mut())? };

    let mut args = LaunchArgs {
        q: driver.upload(&q)?,
        kv: driver.upload(&kv)?,
        page_table: driver.upload(&PAGE_TABLE)?,
        seq_lens: driver.upload(&SEQ_LENS)?,
        out: driver.allocate(BATCH * HEADS * DIM_V * 2)?,
        lse: driver.allocate(BATCH * HEADS * 4)?,
        workspace,
        workspace_bytes,
        pages: PAGES as i64,
        batch: BATCH as i32,
        heads: HEADS as i32,
        page_size: PAGE_SIZE as i32,
        max_pages_per_seq: MAX_PAGES as i32,
        ..Default::default()
    };
    match unsafe { kernel.launch(&args, null_mut()) } { // no softmax_scale yet
        Err(e) if e.status == MLA_ERROR_INVALID_ARGUMENT && e.sentence.contains("softmax_scale") => {}
        other => return Err(format!("a launch without scale gave {other:?}").into()),
    }
    args.softmax_scale = scale as f32;
    unsafe {
        kernel.launch(&args, null_mut())?;
        cuda!(driver.0, cuCtxSynchronize());
    }
    let out: Vec<u16> = driver.download(args.out, BATCH * HEADS * DIM_V)?;
    let lse: Vec<f32> = driver.download(args.lse, BATCH * HEADS)?;

    let (mut worst, mut worst_lse) = (0f64, 0f64);
    for row in 0..BATCH * HEADS {
        let (mut total, mut want) = (0.0, vec![0.0; DIM_V]);
        for i in 0..SEQ_LENS[row / HEADS] as usize {
            let token = &kv[token_at(row / HEADS, i)..][..DIM_K];
            let score: f64 = (0..DIM_K).map(|d| from_e4m3(q[row * DIM_K + d]) * from_e4m3(token[d])).sum();
            let weight = (score * scale).exp();
            total += weight;
            for d in 0..DIM_V {
                want[d] += weight * from_e4m3(token[d]);
            }
        }
        let (mut difference, mut norm) = (0.0, 0.0);
        for d in 0..DIM_V {
            let got = f32::from_bits((out[row * DIM_V + d] as u32) << 16) as f64; // bf16
            difference += (got - want[d] / total).powi(2);
            norm += (want[d] / total).powi(2);
        }
        let (error, error_of_lse) = ((difference / norm).sqrt(), (lse[row] as f64 - total.ln()).abs());
        if !(error < 0.04 && error_of_lse < 0.01) { // NaN is wrong too
            return Err(format!("row {row} is wrong: {error}, lse {error_of_lse}").into());
        }
        worst = worst.max(error);
        worst_lse = worst_lse.max(error_of_lse);
    }
    println!("{} rows: relative error {worst:.2e}, lse {worst_lse:.2e}; {fields} fields", BATCH * HEADS);
    Ok(())
}

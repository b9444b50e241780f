-- SPDX-License-Identifier: Apache-2.0
-- One decode step of MLA attention from LuaJIT; every row is compared with the formula in double.
--
--   luajit decode.lua path/to/libmla_loader.so path/to/bundle
local ffi = require("ffi")
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local abi = require("mla_abi")
ffi.cdef [[
int cuInit(unsigned);
int cuDeviceGet(int*, int);
int cuDeviceGetAttribute(int*, int, int);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t*, size_t);
int cuMemcpyHtoD_v2(uint64_t, const void*, size_t);
int cuMemcpyDtoH_v2(void*, uint64_t, size_t);
]]

local BATCH, HEADS, PAGE_SIZE, PAGES, MAX_PAGES, DIM_K, DIM_V = 2, 16, 32, 9, 5, 576, 512
local SEQ_LENS = ffi.new("int32_t[2]", 130, 7)
local PAGE_TABLE = ffi.new("int32_t[10]", 6, 1, 3, 8, 2, 4, 0, 0, 0, 0)
local SCALE = 1 / math.sqrt(192) -- DeepSeek's heads have 128 + 64 elements before absorption

abi.check_layout()
local mla = ffi.load(arg[1])
local cuda = ffi.load(os.getenv("MLA_CUDA_DRIVER_PATH") or "libcuda.so.1")

local function check(result)
  if result ~= 0 then error("the CUDA driver returned error " .. result) end
end
local function check_mla(status)
  if status ~= 0 then
    error(ffi.string(mla.mla_status_name(status)) .. ": " .. ffi.string(mla.mla_last_error()))
  end
end
local function allocate(bytes)
  local address = ffi.new("uint64_t[1]")
  check(cuda.cuMemAlloc_v2(address, bytes))
  return address[0]
end
local function upload(data, bytes)
  local address = allocate(bytes)
  check(cuda.cuMemcpyHtoD_v2(address, data, bytes))
  return address
end

local state = 1
local function random_e4m3(codes, first, count) -- magnitudes from 2^-3 to just below 2
  for i = first, first + count - 1 do
    state = state * 16807 % 2147483647
    codes[i] = math.floor(state / 256) % 32 + 32 + math.floor(state / 8192) % 2 * 128
  end
end
local function from_e4m3(code)
  local exponent, mantissa = math.floor(code / 8) % 16, code % 8
  local value = exponent > 0 and (8 + mantissa) * 2 ^ (exponent - 10) or mantissa * 2 ^ -9
  return code >= 128 and -value or value
end
local function from_bf16(code)
  local bits = ffi.new("union { uint32_t bits; float value; }", code * 65536)
  return bits.value
end

local number, context, attribute = ffi.new("int[1]"), ffi.new("void*[1]"), ffi.new("int[2]")
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(number, 0))
check(cuda.cuDevicePrimaryCtxRetain(context, number[0]))
check(cuda.cuCtxSetCurrent(context[0]))
check(cuda.cuDeviceGetAttribute(attribute, 75, number[0]))
check(cuda.cuDeviceGetAttribute(attribute + 1, 76, number[0]))

local q_bytes, kv_bytes = BATCH * HEADS * DIM_K, PAGES * PAGE_SIZE * DIM_K
local q, kv = ffi.new("uint8_t[?]", q_bytes), ffi.new("uint8_t[?]", kv_bytes)
random_e4m3(q, 0, q_bytes)
ffi.fill(kv, kv_bytes, 0x7f) -- NaN wherever no request looks
for request = 0, BATCH - 1 do
  for i = 0, SEQ_LENS[request] - 1 do
    local page = PAGE_TABLE[request * MAX_PAGES + math.floor(i / PAGE_SIZE)]
    random_e4m3(kv, (page * PAGE_SIZE + i % PAGE_SIZE) * DIM_K, DIM_K)
  end
end

local bundle = ffi.new("mla_bundle*[1]")
check_mla(mla.mla_bundle_open(arg[2], nil, bundle))
local problem = abi.new("mla_problem")
problem.heads, problem.page_size = HEADS, PAGE_SIZE
problem.cc_major, problem.cc_minor = attribute[0], attribute[1]
local index, info = ffi.new("uint32_t[1]"), abi.new("mla_kernel_info")
check_mla(mla.mla_select(bundle[0], problem, index))
check_mla(mla.mla_bundle_get_kernel(bundle[0], index[0], info))
print("selected " .. ffi.string(info.id))
local kernel, bytes = ffi.new("mla_kernel*[1]"), ffi.new("uint64_t[1]")
check_mla(mla.mla_prepare_index(bundle[0], index[0], nil, kernel))
check_mla(mla.mla_workspace_bytes(bundle[0], nil, bytes))
local workspace = allocate(bytes[0])
check_mla(mla.mla_workspace_init(bundle[0], workspace, bytes[0], nil))

local args = abi.new("mla_launch_args")
args.q, args.kv = upload(q, q_bytes), upload(kv, kv_bytes)
args.page_table, args.seq_lens = upload(PAGE_TABLE, 40), upload(SEQ_LENS, 8)
args.out, args.lse = allocate(BATCH * HEADS * DIM_V * 2), allocate(BATCH * HEADS * 4)
args.workspace, args.workspace_bytes = workspace, bytes[0]
args.pages, args.batch, args.heads, args.page_size = PAGES, BATCH, HEADS, PAGE_SIZE
args.max_pages_per_seq = MAX_PAGES
assert(mla.mla_launch(kernel[0], args, nil) == abi.MLA_ERROR_INVALID_ARGUMENT) -- no softmax_scale yet
assert(ffi.string(mla.mla_last_error()):find("softmax_scale", 1, true), "the error does not name the field")
args.softmax_scale = SCALE
check_mla(mla.mla_launch(kernel[0], args, nil))
check(cuda.cuCtxSynchronize())

local out, lse = ffi.new("uint16_t[?]", BATCH * HEADS * DIM_V), ffi.new("float[?]", BATCH * HEADS)
check(cuda.cuMemcpyDtoH_v2(out, args.out, BATCH * HEADS * DIM_V * 2))
check(cuda.cuMemcpyDtoH_v2(lse, args.lse, BATCH * HEADS * 4))
check_mla(mla.mla_bundle_close(bundle[0]))

local value = ffi.new("double[256]")
for code = 0, 255 do value[code] = from_e4m3(code) end
local worst, worst_lse = 0, 0
for row = 0, BATCH * HEADS - 1 do
  local request = math.floor(row / HEADS)
  local total, want = 0, ffi.new("double[?]", DIM_V)
  for i = 0, SEQ_LENS[request] - 1 do
    local page = PAGE_TABLE[request * MAX_PAGES + math.floor(i / PAGE_SIZE)]
    local at, score = (page * PAGE_SIZE + i % PAGE_SIZE) * DIM_K, 0
    for d = 0, DIM_K - 1 do score = score + value[q[row * DIM_K + d]] * value[kv[at + d]] end
    local weight = math.exp(score * SCALE)
    total = total + weight
    for d = 0, DIM_V - 1 do want[d] = want[d] + weight * value[kv[at + d]] end
  end
  local difference, norm = 0, 0
  for d = 0, DIM_V - 1 do
    local w = want[d] / total
    difference, norm = difference + (from_bf16(out[row * DIM_V + d]) - w) ^ 2, norm + w ^ 2
  end
  local error_of_row, error_of_lse = math.sqrt(difference / norm), math.abs(lse[row] - math.log(total))
  assert(error_of_row < 0.04 and error_of_lse < 0.01, "row " .. row .. " is wrong") -- NaN is too
  worst, worst_lse = math.max(worst, error_of_row), math.max(worst_lse, error_of_lse)
end
print(("%d rows: relative error %.2e, lse %.2e"):format(BATCH * HEADS, worst, worst_lse))

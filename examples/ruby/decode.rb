# SPDX-License-Identifier: Apache-2.0
# One decode step of MLA attention from Ruby; every row is compared with the formula in double.
#
#   ruby decode.rb path/to/libmla_loader.so path/to/bundle
require_relative "mla_abi"

BATCH, HEADS, PAGE_SIZE, PAGES, MAX_PAGES, DIM_K, DIM_V = 2, 16, 32, 9, 5, 576, 512
SEQ_LENS = [130, 7].freeze
PAGE_TABLE = [[6, 1, 3, 8, 2], [4, 0, 0, 0, 0]].freeze
SCALE = 1 / Math.sqrt(192) # DeepSeek's heads have 128 + 64 elements before absorption

MlaAbi.check_layout
MLA = MlaAbi.bind(ARGV[0])
DRIVER = Fiddle.dlopen(ENV["MLA_CUDA_DRIVER_PATH"] || "libcuda.so.1")
INT, SIZE, POINTER, ADDRESS = Fiddle::TYPE_INT, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_VOIDP, -Fiddle::TYPE_LONG_LONG
CUDA = {
  cuInit: [INT], cuDeviceGet: [POINTER, INT], cuDeviceGetAttribute: [POINTER, INT, INT],
  cuDevicePrimaryCtxRetain: [POINTER, INT], cuCtxSetCurrent: [POINTER], cuCtxSynchronize: [],
  cuMemAlloc_v2: [POINTER, SIZE], cuMemcpyHtoD_v2: [ADDRESS, POINTER, SIZE], cuMemcpyDtoH_v2: [POINTER, ADDRESS, SIZE]
}.to_h { |name, types| [name, Fiddle::Function.new(DRIVER[name.to_s], types, INT)] }

def cuda(name, *arguments)
  result = CUDA[name].call(*arguments)
  raise "#{name} returned error #{result}" if result != 0
end

def last_error = Fiddle::Pointer.new(MLA[:mla_last_error].call.to_i).to_s

def mla(name, *arguments)
  status = MLA[name].call(*arguments)
  raise "#{MLA[:mla_status_name].call(status)}: #{last_error}" if status != 0
end

# Calls the block with room for a result of the given format and returns the result.
def result_of(format)
  room = [0].pack(format)
  yield room
  room.unpack1(format)
end

def allocate(bytes) = result_of("Q") { |room| cuda(:cuMemAlloc_v2, room, bytes) }

def upload(data)
  allocate(data.bytesize).tap { |address| cuda(:cuMemcpyHtoD_v2, address, data, data.bytesize) }
end

def download(address, bytes)
  data = "\0".b * bytes
  cuda(:cuMemcpyDtoH_v2, data, address, bytes)
  data
end

def random_e4m3(random, count) # magnitudes from 2^-3 to just below 2
  Array.new(count) { 0x20 + random.rand(32) + 0x80 * random.rand(2) }
end

VALUE = Array.new(256) do |code|
  exponent, mantissa = (code >> 3) & 15, code & 7
  (exponent.positive? ? (8 + mantissa) * 2.0**(exponent - 10) : mantissa * 2.0**-9) * (code < 128 ? 1 : -1)
end

cuda(:cuInit, 0)
device = result_of("l") { |room| cuda(:cuDeviceGet, room, 0) }
cuda(:cuCtxSetCurrent, result_of("Q") { |room| cuda(:cuDevicePrimaryCtxRetain, room, device) })
major, minor = [75, 76].map { |which| result_of("l") { |room| cuda(:cuDeviceGetAttribute, room, which, device) } }

random = Random.new(1)
q = Array.new(BATCH * HEADS) { random_e4m3(random, DIM_K) }
kv = Array.new(PAGES * PAGE_SIZE) { [0x7f] * DIM_K } # NaN wherever no request looks
tokens = SEQ_LENS.zip(PAGE_TABLE).map do |length, pages|
  (0...length).map { |i| kv[pages[i / PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE] = random_e4m3(random, DIM_K) }
end

bundle = result_of("Q") { |room| mla(:mla_bundle_open, ARGV[1], nil, room) }
problem = MlaAbi.create(MlaAbi::Problem)
problem.heads, problem.page_size, problem.cc_major, problem.cc_minor = HEADS, PAGE_SIZE, major, minor
index = result_of("L") { |room| mla(:mla_select, bundle, problem.to_ptr, room) }
info = MlaAbi.create(MlaAbi::KernelInfo)
mla(:mla_bundle_get_kernel, bundle, index, info.to_ptr)
puts "selected #{info.id}"
kernel = result_of("Q") { |room| mla(:mla_prepare_index, bundle, index, nil, room) }
bytes = result_of("Q") { |room| mla(:mla_workspace_bytes, bundle, nil, room) }
workspace = allocate(bytes)
mla(:mla_workspace_init, bundle, workspace, bytes, nil)

args = MlaAbi.create(MlaAbi::LaunchArgs)
args.q = upload(q.flatten.pack("C*"))
args.kv = upload(kv.flatten.pack("C*"))
args.page_table = upload(PAGE_TABLE.flatten.pack("l*"))
args.seq_lens = upload(SEQ_LENS.pack("l*"))
args.out = allocate(BATCH * HEADS * DIM_V * 2)
args.lse = allocate(BATCH * HEADS * 4)
args.workspace, args.workspace_bytes = workspace, bytes
args.pages, args.batch, args.heads, args.page_size = PAGES, BATCH, HEADS, PAGE_SIZE
args.max_pages_per_seq = MAX_PAGES
status = MLA[:mla_launch].call(kernel, args.to_ptr, nil) # no softmax_scale yet
raise "launched without a scale" if status != MlaAbi::MLA_ERROR_INVALID_ARGUMENT
raise "the error does not name the field" unless last_error.include?("softmax_scale")
args.softmax_scale = SCALE
mla(:mla_launch, kernel, args.to_ptr, nil)
cuda(:cuCtxSynchronize)
# bf16 is the upper half of a float.
out = download(args.out, BATCH * HEADS * DIM_V * 2).unpack("S*").map { |code| code << 16 }.pack("L*").unpack("e*")
lse = download(args.lse, BATCH * HEADS * 4).unpack("e*")
mla(:mla_bundle_close, bundle)

errors = q.each_with_index.map do |query, row|
  query = query.map { |code| VALUE[code] }
  total, want = 0.0, [0.0] * DIM_V
  tokens[row / HEADS].each do |codes|
    token = codes.map { |code| VALUE[code] }
    weight = Math.exp(SCALE * query.zip(token).sum { |a, b| a * b })
    total += weight
    DIM_V.times { |d| want[d] += weight * token[d] }
  end
  want.map! { |value| value / total }
  difference = want.each_with_index.sum { |w, d| (out[row * DIM_V + d] - w)**2 }
  [Math.sqrt(difference / want.sum { |w| w * w }), (lse[row] - Math.log(total)).abs]
end
errors.each_with_index do |(error, error_of_lse), row|
  raise "row #{row} is wrong: #{error}, lse #{error_of_lse}" unless error < 0.04 && error_of_lse < 0.01 # NaN is too
end
puts format("%d rows: relative error %.2e, lse %.2e", errors.size, *errors.transpose.map(&:max))

// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and stream capture.
#include <algorithm>

#include "tests/emulator/driver/state.h"

using namespace mla::emu::driver;

namespace {

CUresult create_stream(CUstream* handle, unsigned flags, int priority) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!handle || (flags & ~unsigned(CU_STREAM_NON_BLOCKING))) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  stream->id = state().next_id++;
  context->objects.insert(state().add(stream));
  *handle = to_handle<CUstream>(stream);
  return CUDA_SUCCESS;
}

// The stream, which must not be capturing: waiting for or asking about captured work is refused and
// ends the capture.
CUresult get_idle_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (const CUresult error = get_stream(handle, stream)) return error;
  if ((*stream)->capture) {
    invalidate(*(*stream)->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return check_legacy(**stream);
}

void end(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture_tail.clear();
    if (stream != capture->origin) stream->capture = nullptr;
  }
  auto& captures = state().captures;
  captures.erase(std::remove(captures.begin(), captures.end(), capture), captures.end());
  capture->origin->capture = nullptr;
}

CUresult get_event(CUevent handle, std::shared_ptr<Event>* event) {
  if (const CUresult error = check_initialized()) return error;
  *event = find<Event>(handle);
  if (!*event) return CUDA_ERROR_INVALID_HANDLE;
  return (*event)->context->device->fault;
}

CUresult record(CUevent handle, CUstream stream_handle) {
  const Lock lock(state().mutex);
  std::shared_ptr<Event> event;
  if (const CUresult error = get_event(handle, &event)) return error;
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(stream_handle, &stream)) return error;
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->capture_tail = stream->capture_tail;
    return CUDA_SUCCESS;
  }
  if (const CUresult error = check_legacy(*stream)) return error;
  event->capture.reset();
  event->capture_tail.clear();
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  const Lock lock(state().mutex);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(handle, &stream)) return error;
  if (const CUresult error = check_legacy(*stream, false)) return error;
  const std::shared_ptr<Capture>& capture = stream->capture;
  *status = !capture               ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!capture) return CUDA_SUCCESS;
  stream->capture_tail_handles.clear();
  for (const auto& node : stream->capture_tail)
    stream->capture_tail_handles.push_back(to_handle<CUgraphNode>(node));
  if (id) *id = capture->id;
  if (graph) *graph = to_handle<CUgraph>(capture->graph);
  if (dependencies) *dependencies = stream->capture_tail_handles.data();
  if (edges) *edges = nullptr;
  if (count) *count = stream->capture_tail_handles.size();
  return CUDA_SUCCESS;
}

struct HostFunction : Operation {
  CUhostFn function = nullptr;
  void* data = nullptr;
  HostFunction() { type = CU_GRAPH_NODE_TYPE_HOST; }
  CUresult run(Context&) override {
    function(data);
    return CUDA_SUCCESS;
  }
};

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  const Lock lock(state().mutex);
  std::shared_ptr<Event> first, last;
  if (const CUresult error = get_event(start, &first)) return error;
  if (const CUresult error = get_event(end, &last)) return error;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->recorded || !last->recorded) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// ---- streams -----------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int flags) {
  return create_stream(phStream, flags, 0);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags,
                                                           int priority) {
  return create_stream(phStream, flags, priority);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Stream> stream = find<Stream>(hStream);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    invalidate(*stream->capture);
    stream->capture->streams.erase(stream.get());
    if (stream->capture->origin == stream.get()) {
      const std::shared_ptr<Capture> capture = stream->capture;
      end(capture);
    }
  }
  stream->context->objects.erase(stream->handle);
  state().objects.erase(stream->handle);
  return stream->context->device->fault;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_idle_stream(hStream, &stream)) return error;
  return check_unsafe_call();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_idle_stream(hStream, &stream)) return error;
  return check_unsafe_call();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  const CUresult error = get_stream(hStream, &stream);
  if (!stream) return error;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  *pctx = to_handle<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetCtx_v2(CUstream hStream, CUcontext* pctx, CUgreenCtx* green) {
  if (green) *green = nullptr;
  return cuStreamGetCtx(hStream, pctx);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  const CUresult error = get_stream(hStream, &stream);
  if (!stream) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device->ordinal;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* id) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  std::shared_ptr<Event> event;
  if (const CUresult error = get_event(hEvent, &event)) return error;
  if (flags & ~unsigned(CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Capture> of_event = event->capture.lock();
  const std::shared_ptr<Capture> of_stream = stream->capture;
  if (of_stream && of_stream->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!of_event) {
    if (!of_stream) return check_legacy(*stream);
    // A capture cannot wait for work outside it.
    if (!event->recorded) return CUDA_SUCCESS;
    invalidate(*of_stream);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (of_event->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) {
    invalidate(*of_event);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (of_stream && of_stream != of_event) {
    invalidate(*of_stream);
    invalidate(*of_event);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!of_stream) {
    stream->capture = of_event;
    of_event->streams.insert(stream.get());
  }
  for (const auto& node : event->capture_tail) {
    auto& tail = stream->capture_tail;
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  auto operation = std::make_shared<HostFunction>();
  operation->function = fn;
  operation->data = userData;
  return submit(stream, operation);
}

// ---- capture -----------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = state().next_id++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph = std::make_shared<Graph>();
  capture->streams.insert(stream.get());
  state().add(capture->graph);
  state().captures.push_back(capture);
  stream->capture = capture;
  stream->capture_tail.clear();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
  *phGraph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  // Work of a forked stream that the origin does not wait for in the end is unjoined.
  std::set<const Node*> joined;
  std::vector<const Node*> pending;
  for (const auto& node : stream->capture_tail) pending.push_back(node.get());
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    if (!joined.insert(node).second) continue;
    for (const auto& dependency : node->dependencies) pending.push_back(dependency.get());
  }
  bool unjoined = false;
  for (const Stream* member : capture->streams) {
    for (const auto& node : member->capture_tail) unjoined |= !joined.count(node.get());
  }
  const bool invalidated = capture->invalidated;
  end(capture);
  if (invalidated || unjoined) {
    for (const auto& node : capture->graph->nodes) state().objects.erase(node->handle);
    state().objects.erase(capture->graph->handle);
    return invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  *phGraph = to_handle<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* status) {
  return capture_info(hStream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* status,
                                                       cuuint64_t* id) {
  return capture_info(hStream, status, id, nullptr, nullptr, nullptr, nullptr);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* status,
                                                          cuuint64_t* id, CUgraph* graph,
                                                          const CUgraphNode** dependencies, size_t* count) {
  return capture_info(hStream, status, id, graph, dependencies, nullptr, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* status,
                                                          cuuint64_t* id, CUgraph* graph,
                                                          const CUgraphNode** dependencies,
                                                          const CUgraphEdgeData** edges, size_t* count) {
  return capture_info(hStream, status, id, graph, dependencies, edges, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_capture_mode());
  return CUDA_SUCCESS;
}

// ---- events ------------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (!phEvent || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->context = context;
  event->flags = flags;
  context->objects.insert(state().add(event));
  *phEvent = to_handle<CUevent>(event);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Event> event = find<Event>(hEvent);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  event->context->objects.erase(event->handle);
  state().objects.erase(event->handle);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  if (flags) return CUDA_ERROR_NOT_SUPPORTED;
  return record(hEvent, hStream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  const Lock lock(state().mutex);
  std::shared_ptr<Event> event;
  if (const CUresult error = get_event(hEvent, &event)) return error;
  if (const std::shared_ptr<Capture> capture = event->capture.lock()) {
    invalidate(*capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return check_unsafe_call();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) { return cuEventQuery(hEvent); }

MLA_EMU_EXPORT CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

}  // extern "C"

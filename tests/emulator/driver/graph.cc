// SPDX-License-Identifier: Apache-2.0
//
// Graphs: made by capture (stream.cc) or as empty graphs with kernel nodes, instantiated, launched.
#include <algorithm>

#include "tests/emulator/driver/state.h"

using namespace mla::emu::driver;

namespace {

// The whole graph as one piece of work, when a graph launch is itself captured.
struct ChildGraph : Operation {
  std::shared_ptr<GraphExec> graph;
  ChildGraph() { type = CU_GRAPH_NODE_TYPE_GRAPH; }
  CUresult run(Context& context) override {
    for (const auto& operation : graph->operations) {
      if (const CUresult error = operation->run(context)) return error;
      if (context.device->fault) return CUDA_SUCCESS;  // the work after a fault is never done
    }
    return CUDA_SUCCESS;
  }
};

CUresult instantiate_graph(CUgraphExec* handle, CUgraph hGraph, unsigned long long flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<Graph> graph = find<Graph>(hGraph);
  if (!handle || !graph) return CUDA_ERROR_INVALID_VALUE;
  const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                   CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                   CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (flags & ~known) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<GraphExec>();
  made->context = context;
  made->flags = flags;
  for (const auto& node : graph->nodes) {
    if (node->operation) made->operations.push_back(node->operation);
  }
  state().add(made);
  *handle = to_handle<CUgraphExec>(made);
  return CUDA_SUCCESS;
}

template <class List>
CUresult copy_out(const List& list, CUgraphNode* nodes, size_t* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (nodes) {
    for (size_t i = 0; i < *count; ++i)
      nodes[i] = i < list.size() ? to_handle<CUgraphNode>(list[i]) : nullptr;
    *count = std::min(*count, list.size());
  } else {
    *count = list.size();
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!phGraph || flags) return CUDA_ERROR_INVALID_VALUE;
  auto graph = std::make_shared<Graph>();
  state().add(graph);
  *phGraph = to_handle<CUgraph>(graph);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                                    const CUgraphNode* dependencies, size_t numDependencies) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Graph> graph = find<Graph>(hGraph);
  if (!graph || !phGraphNode || (numDependencies && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  auto node = std::make_shared<Node>();
  for (size_t i = 0; i < numDependencies; ++i) {
    const std::shared_ptr<Node> dependency = find<Node>(dependencies[i]);
    if (!dependency ||
        std::find(graph->nodes.begin(), graph->nodes.end(), dependency) == graph->nodes.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    node->dependencies.push_back(dependency);
  }
  state().add(node);
  graph->nodes.push_back(node);
  *phGraphNode = to_handle<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Graph> graph = find<Graph>(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes) state().objects.erase(node->handle);
  state().objects.erase(graph->handle);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Graph> graph = find<Graph>(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  return copy_out(graph->nodes, nodes, numNodes);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Graph> graph = find<Graph>(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::shared_ptr<Node>> roots;
  for (const auto& node : graph->nodes) {
    if (node->dependencies.empty()) roots.push_back(node);
  }
  return copy_out(roots, nodes, numNodes);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Node> node = find<Node>(hNode);
  if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                                           size_t* numDependencies) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Node> node = find<Node>(hNode);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  return copy_out(node->dependencies, dependencies, numDependencies);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                                            unsigned long long flags) {
  return instantiate_graph(phGraphExec, hGraph, flags);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph,
                                                      CUgraphNode* phErrorNode, char* logBuffer,
                                                      size_t bufferSize) {
  if (phErrorNode) *phErrorNode = nullptr;
  if (logBuffer && bufferSize) *logBuffer = '\0';
  return instantiate_graph(phGraphExec, hGraph, 0);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                                             CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate_graph(phGraphExec, hGraph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return result;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<GraphExec> graph = find<GraphExec>(hGraphExec);
  if (!graph || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = graph->flags;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  return find<GraphExec>(hGraphExec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  auto operation = std::make_shared<ChildGraph>();
  operation->graph = find<GraphExec>(hGraphExec);
  if (!operation->graph) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, operation);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<GraphExec> graph = find<GraphExec>(hGraphExec);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  state().objects.erase(graph->handle);
  return CUDA_SUCCESS;
}

}  // extern "C"

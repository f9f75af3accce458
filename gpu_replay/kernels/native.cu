// The native kernels as one library: swap-in, replay of a recorded plan, and what timing needs.

#include "pieces.cuh"
#include "swap_in.cuh"

// Arguments of a plan's replay; strides in elements. Mirrored by native.py.
struct Planned {
  const int64_t* source;  // [batch, stride] host place of every miss
  const int32_t* target;  // [batch, stride] its device place
  const int32_t* count;   // [batch]
  const int32_t* real;    // [1]
  const char* host;
  char* device;
  int64_t stride;
  int32_t batch, blocks, skip_io;
};

// Moves the entries of a recorded plan: no state, no decisions. The misses of all requests are one
// list, dealt out in 16-byte pieces over the grid.
__global__ void __launch_bounds__(kThreads, 1) planned_kernel(const Planned a) {
  __shared__ int end[kThreads];  // misses up to and including every request of the window
  __shared__ uint32_t warp_sum[kWarps];
  const int tid = threadIdx.x;
  const int real = min(*a.real, a.batch);
  for (int window = 0; window < real; window += kThreads) {
    const int rows = min(kThreads, real - window);
    uint32_t total;
    __syncthreads();  // the last window's readers are done
    end[tid] = block_scan(tid < rows ? a.count[window + tid] : 0, warp_sum, &total);
    __syncthreads();
    if (a.skip_io) continue;
    const int stride = a.blocks * kThreads;
    const int pieces = static_cast<int>(total) * kChunks;
    copy_pieces<4>(blockIdx.x * kThreads + tid, stride, pieces,
                [&](int piece, const char** from, char** to) {
                  const int item = piece / kChunks;
                  const int at = (piece - item * kChunks) * 16;
                  int low = 0;  // first request whose end lies behind the entry
                  for (int high = rows - 1; low < high;) {
                    const int middle = (low + high) / 2;
                    if (end[middle] > item) high = middle; else low = middle + 1;
                  }
                  const int64_t m = (window + low) * a.stride + item - (low ? end[low - 1] : 0);
                  *from = a.host + a.source[m] * ENTRY_BYTES + at;
                  *to = a.device + static_cast<int64_t>(a.target[m]) * ENTRY_BYTES + at;
                });
  }
}

__global__ void empty_kernel() {}

// Keeps the stream busy while the host puts behind it what is to be timed.
__global__ void delay_kernel(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

namespace {

cudaError_t launch(const void* kernel, int blocks, int cluster, bool early, size_t shared_bytes,
                   void* argument, void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (early) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {argument};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// The address under which the GPU reads pinned host memory; null if it cannot.
const char* device_view(const void* host) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  // Pageable memory may be reachable on some systems, but far too slowly.
  if (attributes.type == cudaMemoryTypeUnregistered) return nullptr;
  return static_cast<const char*>(attributes.devicePointer);
}

}  // namespace

extern "C" {

// Loads the kernels, so that a first call may be captured into a graph.
int hs_prepare(int device) {
  cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) return error;
  for (const auto kernel : {swap_in_kernel<false>, swap_in_kernel<true>}) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Plan));
    if (error != cudaSuccess) return error;
  }
  cudaFuncAttributes unused;
  error = cudaFuncGetAttributes(&unused, planned_kernel);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&unused, empty_kernel);
}

// Writes the device's PCI address, such as 0000:1b:00.0, as text of at most `size` bytes.
int hs_pci_address(int device, char* address, int size) {
  return cudaDeviceGetPCIBusId(address, size, device);
}

int hs_shared_bytes() { return sizeof(Plan); }

int hs_swap_in(SwapIn* a, void* stream) {
  a->host = device_view(a->host);
  if (!a->host) return cudaErrorHostMemoryNotRegistered;
  const auto kernel = a->worth ? swap_in_kernel<true> : swap_in_kernel<false>;
  return launch(reinterpret_cast<const void*>(kernel), a->batch * a->cluster, a->cluster, a->early,
                sizeof(Plan), a, stream);
}

int hs_copy_planned(Planned* a, void* stream) {
  a->host = device_view(a->host);
  if (!a->host) return cudaErrorHostMemoryNotRegistered;
  return launch(reinterpret_cast<const void*>(planned_kernel), a->blocks, 1, false, 0, a, stream);
}

int hs_empty(void* stream) {
  empty_kernel<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}

int hs_delay(int64_t ns, void* stream) {
  delay_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(ns);
  return cudaGetLastError();
}

const char* hs_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
}

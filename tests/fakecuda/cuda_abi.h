/* The part of the CUDA driver API's ABI (CUDA 13.0) that the double needs, in our own words. */
#ifndef FC_CUDA_ABI_H
#define FC_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void* CUcontext;
typedef void* CUstream;
typedef void* CUevent;
typedef void* CUmodule;
typedef void* CUlibrary;
typedef void* CUfunction; /* launches take CUkernel handles too */
typedef void* CUkernel;
typedef void* CUgraph;
typedef void* CUgraphNode;
typedef void* CUgraphExec;
typedef void* CUgreenCtx;
typedef void* CUdevResourceDesc;
typedef void* CUarray;
typedef void* CUmemoryPool;
typedef void (*CUhostFn)(void*);

/* X(name, value, text) for every result that the double can give. */
#define FC_RESULTS(X)                                                                                                 \
  X(CUDA_SUCCESS, 0, "no error")                                                                                      \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                                                  \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                                     \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                                            \
  X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                                              \
  X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                                  \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                                         \
  X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                                                  \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                                                        \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS")                         \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                                        \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                          \
  X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                                              \
  X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                                                    \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                      \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                               \
  X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "cannot set while device is active in this process")                      \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                     \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped")    \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region")          \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                                      \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                                         \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                                         \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                   \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")            \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences")          \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began")                 \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work")                                    \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")              \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing stream")   \
  X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream")        \
  X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture from another thread")   \
  X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed because of constraint violations") \
  X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type")                                                   \
  X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration")                                 \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

#define X(name, value, text) name = value,
enum { FC_RESULTS(X) };
#undef X

/* The default streams' explicit handles. */
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum { CU_EVENT_RECORD_EXTERNAL = 1, CU_EVENT_WAIT_EXTERNAL = 1 };
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_STATUS_NONE = 0, CU_CAPTURE_STATUS_ACTIVE = 1, CU_CAPTURE_STATUS_INVALIDATED = 2 };
enum {
  CU_NODE_KERNEL = 0,
  CU_NODE_MEMCPY = 1,
  CU_NODE_MEMSET = 2,
  CU_NODE_HOST = 3,
  CU_NODE_GRAPH = 4,
  CU_NODE_EMPTY = 5,
  CU_NODE_WAIT_EVENT = 6,
  CU_NODE_EVENT_RECORD = 7,
  CU_NODE_MEM_ALLOC = 10,
  CU_NODE_MEM_FREE = 11,
  CU_NODE_BATCH_MEM_OP = 12,
};
enum { CU_MEMTYPE_HOST = 1, CU_MEMTYPE_DEVICE = 2, CU_MEMTYPE_ARRAY = 3, CU_MEMTYPE_UNIFIED = 4 };
enum {
  CU_MEM_OP_WAIT_32 = 1,
  CU_MEM_OP_WRITE_32 = 2,
  CU_MEM_OP_FLUSH = 3,
  CU_MEM_OP_WAIT_64 = 4,
  CU_MEM_OP_WRITE_64 = 5,
  CU_MEM_OP_BARRIER = 6
};
enum { CU_LAUNCH_ATTR_COOPERATIVE = 2, CU_LAUNCH_ATTR_PRIORITY = 8, CU_LAUNCH_ATTR_COMPLETION_EVENT = 12 };
enum { CU_LAUNCH_PARAM_END = 0, CU_LAUNCH_PARAM_BUFFER_POINTER = 1, CU_LAUNCH_PARAM_BUFFER_SIZE = 2 };
enum { CU_RESOURCE_SM = 1 };

typedef struct {
  char bytes[16];
} CUuuid;

typedef struct {
  unsigned int id;
  char pad[4];
  union {
    char bytes[64];
    int priority, cooperative;
    struct {
      CUevent event;
      int flags;
    } completion;
  } value;
} CUlaunchAttribute;

typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  const CUlaunchAttribute* attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
  CUfunction func;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  void** kernelParams;
  void** extra;
  CUkernel kern;
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
  uint64_t flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
  int result;
  CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct {
  CUfunction function;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void** kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct {
  size_t srcXInBytes, srcY;
  unsigned int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  unsigned int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have one layout: the peer form names contexts where this one has `reserved`. */
typedef struct {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  unsigned int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  unsigned int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
  size_t Width, Height;
  unsigned int Format, NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef union {
  unsigned int operation;
  struct {
    unsigned int operation;
    CUdeviceptr address;
    uint64_t value;
    unsigned int flags;
    CUdeviceptr alias;
  } mem;
  uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
  unsigned int type;
  unsigned char internal[92];
  union {
    struct {
      unsigned int smCount, minSmPartitionSize, smCoscheduledAlignment;
    } sm;
    unsigned char oversize[48];
  };
} CUdevResource;
_Static_assert(sizeof(CUdevResource) == 144, "CUdevResource is 144 bytes in CUDA 13.0");
_Static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute is 72 bytes");

#endif

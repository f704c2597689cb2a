/* error_names.c: cuGetErrorName and cuGetErrorString.
 *
 * Called by every program that reports an error; works before cuInit. A code that the headers do not know is
 * CUDA_ERROR_INVALID_VALUE with a NULL text, as in the real driver. The names come from the enumeration itself, so
 * one that is misspelt does not compile; and one that is missing makes the compiler warn, since the switches have no
 * default.
 */
#include <stddef.h>

#include "sim.h"
#include "sim_impl.h"

#define ERRORS(ROW)                                                                                                    \
	ROW(CUDA_SUCCESS, "no error")                                                                                  \
	ROW(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                              \
	ROW(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                 \
	ROW(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                        \
	ROW(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                          \
	ROW(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool")                     \
	ROW(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized")                                           \
	ROW(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started")                                           \
	ROW(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped")                                           \
	ROW(CUDA_ERROR_STUB_LIBRARY, "stub library in use")                                                            \
	ROW(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires a newer driver")                                     \
	ROW(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable")                                               \
	ROW(CUDA_ERROR_MULTICAST_RESOURCE_FULL, "multicast resource full")                                             \
	ROW(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                \
	ROW(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                       \
	ROW(CUDA_ERROR_DEVICE_NOT_LICENSED, "device has no valid license")                                             \
	ROW(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                                \
	ROW(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                      \
	ROW(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current")                                             \
	ROW(CUDA_ERROR_MAP_FAILED, "mapping failed")                                                                   \
	ROW(CUDA_ERROR_UNMAP_FAILED, "unmapping failed")                                                               \
	ROW(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped")                                                             \
	ROW(CUDA_ERROR_ALREADY_MAPPED, "already mapped")                                                               \
	ROW(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device")                                           \
	ROW(CUDA_ERROR_ALREADY_ACQUIRED, "already acquired")                                                           \
	ROW(CUDA_ERROR_NOT_MAPPED, "not mapped")                                                                       \
	ROW(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "not mapped as an array")                                                  \
	ROW(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "not mapped as a pointer")                                               \
	ROW(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error")                                                   \
	ROW(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit not supported")                                                       \
	ROW(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context in use by another thread")                                     \
	ROW(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access not supported between these devices")                     \
	ROW(CUDA_ERROR_INVALID_PTX, "PTX did not compile")                                                             \
	ROW(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context")                                           \
	ROW(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error")                                             \
	ROW(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX compiler not found")                                               \
	ROW(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX version not supported")                                           \
	ROW(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX compilation disabled")                                           \
	ROW(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity not supported")                                  \
	ROW(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "device-side synchronization not supported")                          \
	ROW(CUDA_ERROR_CONTAINED, "error contained to this process")                                                   \
	ROW(CUDA_ERROR_INSUFFICIENT_LOADER_VERSION, "loader too old for this image")                                   \
	ROW(CUDA_ERROR_INVALID_SOURCE, "invalid device kernel source")                                                 \
	ROW(CUDA_ERROR_FILE_NOT_FOUND, "file not found")                                                               \
	ROW(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "symbol of a shared object not found")                          \
	ROW(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object failed to initialize")                                \
	ROW(CUDA_ERROR_OPERATING_SYSTEM, "operating system call failed")                                               \
	ROW(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                      \
	ROW(CUDA_ERROR_ILLEGAL_STATE, "resource not in a state for this operation")                                    \
	ROW(CUDA_ERROR_LOSSY_QUERY, "query would lose information")                                                    \
	ROW(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                            \
	ROW(CUDA_ERROR_NOT_READY, "device not ready")                                                                  \
	ROW(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access")                                                       \
	ROW(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                             \
	ROW(CUDA_ERROR_LAUNCH_TIMEOUT, "launch timed out")                                                             \
	ROW(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch with incompatible texturing mode")                       \
	ROW(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access already enabled")                                     \
	ROW(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access not enabled")                                             \
	ROW(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context active")                                               \
	ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                                   \
	ROW(CUDA_ERROR_ASSERT, "device-side assert triggered")                                                         \
	ROW(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted")                                             \
	ROW(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered")                               \
	ROW(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered")                                       \
	ROW(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                                   \
	ROW(CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction")                                                     \
	ROW(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                                       \
	ROW(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on this address space")                         \
	ROW(CUDA_ERROR_INVALID_PC, "invalid program counter")                                                          \
	ROW(CUDA_ERROR_LAUNCH_FAILED, "launch failed")                                                                 \
	ROW(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")                          \
	ROW(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not freed")                                                  \
	ROW(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                       \
	ROW(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                       \
	ROW(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready")                                                           \
	ROW(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has another driver than this one")                              \
	ROW(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility not supported on this device")           \
	ROW(CUDA_ERROR_MPS_CONNECTION_FAILED, "cannot connect to the MPS control daemon")                              \
	ROW(CUDA_ERROR_MPS_RPC_FAILURE, "remote procedure call to MPS failed")                                         \
	ROW(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server not ready")                                                   \
	ROW(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "MPS has no client left")                                              \
	ROW(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "MPS has no device connection left")                               \
	ROW(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client terminated")                                                 \
	ROW(CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism not supported")                                         \
	ROW(CUDA_ERROR_CDP_VERSION_MISMATCH, "dynamic parallelism version mismatch")                                   \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted while a stream is capturing")              \
	ROW(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture was invalidated by an earlier error")                      \
	ROW(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would merge two captures")                                     \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not begun in this stream")                               \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capture has streams that were not joined")                            \
	ROW(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency crosses the border of a capture")                         \
	ROW(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would depend on a capturing legacy stream")                 \
	ROW(CUDA_ERROR_CAPTURED_EVENT, "event was last recorded in a capturing stream")                                \
	ROW(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture was begun by another thread")                             \
	ROW(CUDA_ERROR_TIMEOUT, "wait timed out")                                                                      \
	ROW(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "graph update violates a constraint")                                \
	ROW(CUDA_ERROR_EXTERNAL_DEVICE, "external device failed")                                                      \
	ROW(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfigured")                                                  \
	ROW(CUDA_ERROR_FUNCTION_NOT_LOADED, "function not loaded")                                                     \
	ROW(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type")                                                 \
	ROW(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration")                               \
	ROW(CUDA_ERROR_KEY_ROTATION, "key rotation under way")                                                         \
	ROW(CUDA_ERROR_STREAM_DETACHED, "stream is detached")                                                          \
	ROW(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, "graph cannot be captured again")                                      \
	ROW(CUDA_ERROR_FABRIC_NOT_READY, "fabric not ready")                                                           \
	ROW(CUDA_ERROR_UNKNOWN, "unknown error")

#define NAME(code, text)                                                                                               \
	case code:                                                                                                     \
		return #code;
#define TEXT(code, text)                                                                                               \
	case code:                                                                                                     \
		return text;

static const char *name_of(CUresult error)
{
	switch (error) {
		ERRORS(NAME)
	}
	return NULL;
}

static const char *text_of(CUresult error)
{
	switch (error) {
		ERRORS(TEXT)
	}
	return NULL;
}

CUresult sim_cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = name_of(error);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorString(CUresult error, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = text_of(error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

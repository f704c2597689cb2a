/* sharing_ways.h: each way in which processes share device memory, as the same few actions: make, export, import, let
 * go of the object, let go of the memory. For test_same_sharing.c, whose output is compared, so every call is said with
 * its answer and nothing is said that differs between two runs: no pointer, no handle, no descriptor.
 */
#ifndef PARTAGE_TESTS_SHARING_WAYS_H
#define PARTAGE_TESTS_SHARING_WAYS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "pass_fd.h"

#define MIB    (UINT64_C(1) << 20)
#define BYTES  (6 * MIB) /* of what is made; of pools and cuIpc a little less than granules */
#define WINDOW (2 * MIB) /* where a buffer of external memory begins */
#define MOST   4 /* imports that a process has at once */

/* Says the call as it stands in the source, and its answer. */
#define SAY(call) say_result(#call, (call))

static char who; /* this process, in what it says */

static inline CUresult say_result(const char *call, CUresult result)
{
	printf("%c   %s = %d\n", who, call, (int)result);
	return result;
}

static inline void say_number(const char *what, uint64_t number)
{
	printf("%c   %s %llu\n", who, what, (unsigned long long)number);
}

/* One piece of memory, made here or imported. */
struct piece {
	CUdeviceptr p;
	size_t bytes;
	CUmemGenericAllocationHandle handle;
	CUexternalMemory object;
	CUmipmappedArray mipmap; /* of the external memory, beside the buffer */
	CUmemoryPool pool;
	CUdeviceptr neighbour; /* in the same chunk of the pool */
	CUevent event;
	bool let_go; /* of the object */
};

struct way {
	const char *name;
	void (*make)(struct piece *);
	void (*give)(struct piece *, int to); /* export it, and send what the other side needs */
	void (*take)(struct piece *, int from);
	void (*let_go)(struct piece *, bool made); /* of the object; the memory stays */
	void (*end)(struct piece *, bool made); /* of the memory, and of the object where it was not let go of */
};

static inline void send_all(int to, const void *what, size_t bytes)
{
	CHECK(write(to, what, bytes) == (ssize_t)bytes, "write");
}

static inline void receive_all(int from, void *what, size_t bytes)
{
	CHECK(read(from, what, bytes) == (ssize_t)bytes, "read");
}

/* ---- cuIpc, with an event ---------------------------------------------------------------------------------------- */

static inline void ipc_make(struct piece *m)
{
	size_t bytes = m->bytes = BYTES - 123;
	SAY(cuMemAlloc(&m->p, bytes));
	SAY(cuEventCreate(&m->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
}

static inline void ipc_give(struct piece *m, int to)
{
	CUipcMemHandle memory = {{0}};
	CUipcEventHandle event = {{0}};
	SAY(cuIpcGetMemHandle(&memory, m->p));
	SAY(cuIpcGetEventHandle(&event, m->event));
	send_all(to, &memory, sizeof memory);
	send_all(to, &event, sizeof event);
}

static inline void ipc_take(struct piece *m, int from)
{
	CUipcMemHandle memory;
	CUipcEventHandle event;
	receive_all(from, &memory, sizeof memory);
	receive_all(from, &event, sizeof event);
	m->bytes = BYTES - 123;
	SAY(cuIpcOpenMemHandle(&m->p, memory, 0)); /* the flag is missing */
	SAY(cuIpcOpenMemHandle(&m->p, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	SAY(cuIpcOpenEventHandle(&m->event, event));
}

static inline void ipc_let_go(struct piece *m, bool made)
{
	(void)made;
	SAY(cuEventDestroy(m->event));
}

static inline void ipc_end(struct piece *m, bool made)
{
	if (!m->let_go)
		SAY(cuEventDestroy(m->event));
	if (made) {
		SAY(cuIpcCloseMemHandle(m->p)); /* not opened */
		SAY(cuMemFree(m->p));
		SAY(cuMemFree(m->p));
	} else {
		SAY(cuMemFree(m->p)); /* not its maker */
		SAY(cuIpcCloseMemHandle(m->p));
	}
}

/* ---- descriptors of allocation handles --------------------------------------------------------------------------- */

static inline void map_piece(struct piece *m)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	size_t bytes = m->bytes;
	SAY(cuMemAddressReserve(&m->p, bytes, 0, 0, 0));
	SAY(cuMemMap(m->p, bytes, 0, m->handle, 0));
	SAY(cuMemSetAccess(m->p, bytes, &access, 1));
}

static inline void say_properties(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = {0};
	if (SAY(cuMemGetAllocationPropertiesFromHandle(&prop, handle)) == CUDA_SUCCESS)
		printf("%c   type %d, handle types %d, at %d %d, flags %d %d\n", who, (int)prop.type,
		       (int)prop.requestedHandleTypes, (int)prop.location.type, prop.location.id,
		       prop.allocFlags.compressionType, prop.allocFlags.usage);
}

static inline void vmm_make(struct piece *m)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	size_t granularity = 0;
	SAY(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	say_number("granularity", granularity);
	m->bytes = BYTES;
	SAY(cuMemCreate(&m->handle, BYTES, &prop, 0));
	say_properties(m->handle);
	map_piece(m);
}

static inline void vmm_give(struct piece *m, int to)
{
	int fd = -1, none = -1;
	SAY(cuMemExportToShareableHandle(&none, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
	SAY(cuMemExportToShareableHandle(&none, m->handle, CU_MEM_HANDLE_TYPE_WIN32, 0));
	SAY(cuMemExportToShareableHandle(&fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK(fd >= 0, "no descriptor");
	send_fd(to, fd);
	close(fd);
}

static inline void vmm_take(struct piece *m, int from)
{
	int fd = receive_fd(from);
	m->bytes = BYTES;
	SAY(cuMemImportFromShareableHandle(&m->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	say_properties(m->handle);
	map_piece(m);
}

static inline void vmm_let_go(struct piece *m, bool made)
{
	(void)made;
	SAY(cuMemRelease(m->handle));
}

static inline void vmm_end(struct piece *m, bool made)
{
	size_t bytes = m->bytes;
	(void)made;
	SAY(cuMemUnmap(m->p, bytes));
	SAY(cuMemUnmap(m->p, bytes));
	SAY(cuMemAddressFree(m->p, bytes));
	if (!m->let_go)
		SAY(cuMemRelease(m->handle));
	SAY(cuMemRelease(m->handle));
}

/* ---- the same, imported as external memory ----------------------------------------------------------------------- */

static inline void external_take(struct piece *m, int from)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = BYTES + 1};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.offset = WINDOW, .size = BYTES};
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC mipmap = {
	        .offset = WINDOW,
	        .arrayDesc = {.Width = 2000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1},
	        .numLevels = 3};
	CUarray level;
	desc.handle.fd = receive_fd(from);
	SAY(cuImportExternalMemory(&m->object, &desc)); /* more than there is */
	desc.size = BYTES;
	SAY(cuImportExternalMemory(&m->object, &desc));
	SAY(cuExternalMemoryGetMappedBuffer(&m->p, m->object, &buffer)); /* past the end */
	m->bytes = buffer.size = BYTES - WINDOW - 5;
	SAY(cuExternalMemoryGetMappedBuffer(&m->p, m->object, &buffer));
	SAY(cuExternalMemoryGetMappedMipmappedArray(&m->mipmap, m->object, &mipmap)); /* larger than that */
	mipmap.arrayDesc.Width = 100;
	SAY(cuExternalMemoryGetMappedMipmappedArray(&m->mipmap, m->object, &mipmap));
	SAY(cuMipmappedArrayGetLevel(&level, m->mipmap, 1));
	if (SAY(cuArray3DGetDescriptor(&mipmap.arrayDesc, level)) == CUDA_SUCCESS)
		printf("%c   %zu x %zu\n", who, mipmap.arrayDesc.Width, mipmap.arrayDesc.Height);
}

static inline void external_let_go(struct piece *m, bool made)
{
	if (made)
		vmm_let_go(m, made);
	else
		SAY(cuDestroyExternalMemory(m->object));
}

static inline void external_end(struct piece *m, bool made)
{
	if (made) {
		vmm_end(m, made);
		return;
	}
	if (!m->let_go)
		SAY(cuDestroyExternalMemory(m->object));
	SAY(cuMemFree(m->p));
	SAY(cuMemFree(m->p));
	SAY(cuMipmappedArrayDestroy(m->mipmap));
	SAY(cuMipmappedArrayDestroy(m->mipmap));
}

/* ---- blocks of exported pools ------------------------------------------------------------------------------------ */

static inline void say_pool(CUmemoryPool pool)
{
	static const CUmemPool_attribute attribute[] = {
	        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
	        CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD};
	for (size_t i = 0; i < sizeof attribute / sizeof *attribute; i++) {
		cuuint64_t value = 0;
		if (SAY(cuMemPoolGetAttribute(pool, attribute[i], &value)) == CUDA_SUCCESS)
			say_number("pool", value);
	}
}

static inline void pool_make(struct piece *m)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	size_t bytes = m->bytes = BYTES - 321;
	SAY(cuMemPoolCreate(&m->pool, &props));
	SAY(cuMemAllocFromPoolAsync(&m->neighbour, MIB, m->pool, NULL));
	SAY(cuMemAllocFromPoolAsync(&m->p, bytes, m->pool, NULL));
	SAY(cuStreamSynchronize(NULL));
	say_pool(m->pool);
}

static inline void pool_give(struct piece *m, int to)
{
	CUmemPoolPtrExportData pointer = {{0}};
	int fd = -1;
	SAY(cuMemPoolExportToShareableHandle(&fd, m->pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	SAY(cuMemPoolExportPointer(&pointer, m->p));
	CHECK(fd >= 0, "no descriptor");
	send_fd(to, fd);
	close(fd);
	send_all(to, &pointer, sizeof pointer);
}

static inline void pool_take(struct piece *m, int from)
{
	CUmemPoolPtrExportData pointer;
	CUdeviceptr none;
	int fd = receive_fd(from);
	receive_all(from, &pointer, sizeof pointer);
	m->bytes = BYTES - 321;
	SAY(cuMemPoolImportFromShareableHandle(&m->pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                       0));
	close(fd);
	SAY(cuMemAllocFromPoolAsync(&none, MIB, m->pool, NULL)); /* not its own */
	SAY(cuMemPoolImportPointer(&m->p, m->pool, &pointer));
}

static inline void pool_let_go(struct piece *m, bool made)
{
	(void)made;
	SAY(cuMemPoolDestroy(m->pool));
}

static inline void pool_end(struct piece *m, bool made)
{
	if (made)
		SAY(cuMemFreeAsync(m->neighbour, NULL));
	SAY(cuMemFreeAsync(m->p, NULL));
	SAY(cuStreamSynchronize(NULL));
	SAY(cuMemFree(m->p));
	if (!m->let_go)
		SAY(cuMemPoolDestroy(m->pool));
}

static const struct way ways[] = {
        {"cuIpc", ipc_make, ipc_give, ipc_take, ipc_let_go, ipc_end},
        {"descriptor", vmm_make, vmm_give, vmm_take, vmm_let_go, vmm_end},
        {"external", vmm_make, vmm_give, external_take, external_let_go, external_end},
        {"pool", pool_make, pool_give, pool_take, pool_let_go, pool_end},
};

#endif

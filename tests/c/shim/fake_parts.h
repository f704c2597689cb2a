/* fake_parts.h: what the files of the fake driver (fake_driver.h) have in common: the books and each file's calls. */
#ifndef PARTAGE_TESTS_FAKE_PARTS_H
#define PARTAGE_TESTS_FAKE_PARTS_H

#include "fake_driver.h"

#define FAKE_BASE UINT64_C(0x7f0000000000) /* plain memory begins here; the pool's lies below */

/* fake_books.c */
void fake_enter(void); /* the one lock; another thread may run first */
void fake_leave(void); /* the rule is checked before it is open again */
void fake_take(uint64_t bytes); /* under the lock: the driver holds so much more */
void fake_drop(uint64_t bytes); /* under the lock */
void fake_hold(int64_t bytes); /* so much more (or less) is held */
bool fake_fails(const char *call, CUresult *error); /* is it this call's turn to fail? */
bool fake_fails_locked(const char *call,
                       CUresult *error); /* the same under the lock, which a signal handler finds open */

/* fake_memory.c */
CUresult fake_free_plain(CUdeviceptr p); /* under the lock */
CUresult fake_cuMemAlloc_v2(CUdeviceptr *p, size_t n);
CUresult fake_cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned int flags);
CUresult fake_cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned int element);
CUresult fake_cuMemFree_v2(CUdeviceptr p);

/* fake_pool.c */
CUresult fake_free_pooled(CUdeviceptr p, unsigned stream, bool now); /* under the lock */
CUresult fake_cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream stream);
CUresult fake_cuMemFreeAsync(CUdeviceptr p, CUstream stream);
CUresult fake_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult fake_cuMemPoolTrimTo(CUmemoryPool pool, size_t least);
CUresult fake_get_pool(CUmemoryPool *pool, CUdevice device); /* the device's default or current one */

/* fake_vmm.c */
bool fake_mapped(CUmemGenericAllocationHandle handle, int change); /* once more (+1), if it is live, or less (-1) */
CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *prop,
                          unsigned long long flags);
CUresult fake_cuMemRelease(CUmemGenericAllocationHandle h);
CUresult fake_cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h,
                       unsigned long long flags);
CUresult fake_cuMemUnmap(CUdeviceptr p, size_t n);
CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *address);

/* fake_arrays.c */
CUresult fake_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream);
CUresult fake_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d);
CUresult fake_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d);
CUresult fake_cuArrayDestroy(CUarray handle);
CUresult fake_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device);
CUresult fake_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels);
CUresult fake_cuMipmappedArrayDestroy(CUmipmappedArray handle);
CUresult fake_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray handle,
                                                    CUdevice device);

/* fake_multicast.c */
CUresult fake_cuMulticastCreate(CUmemGenericAllocationHandle *h, const CUmulticastObjectProp *prop);
CUresult fake_cuMulticastBindMem_v2(CUmemGenericAllocationHandle h, CUdevice device, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags);
CUresult fake_cuMulticastUnbind(CUmemGenericAllocationHandle h, CUdevice device, size_t offset, size_t size);
bool fake_multicast_release(CUmemGenericAllocationHandle h); /* false: it is none */

#endif

/* fake_driver.h: a driver and a ledger in one process, under one lock, that check one rule at every change: what is
 * charged is never less than what the driver holds. Used by the tests that link the shim's own files and race threads
 * through them; the fake hands addresses and handles out again at once, which is the worst that a driver may do.
 */
#ifndef PARTAGE_TESTS_FAKE_DRIVER_H
#define PARTAGE_TESTS_FAKE_DRIVER_H

#include <stdint.h>

#include "check.h"
#include "hooks.h"
#include "memory.h"

#define MIB          (UINT64_C(1) << 20)
#define FAKE_CONTEXT (UINT64_C(64) << 20) /* what a context takes, and is estimated to */

void fake_reset(uint64_t limit); /* empties driver and ledger */
uint64_t fake_physical(void);
uint64_t fake_charged(void);
uint64_t fake_worst(void); /* most bytes by which the driver ever held more than was charged */
uint64_t fake_peak(void); /* most bytes the driver ever held */
uint64_t fake_over_refunds(void); /* bytes given back that were not charged */
void fake_sync(void); /* all queued work has run: pending frees happen, the pool releases what is unused */
void fake_keep(uint64_t bytes); /* the pool's release threshold */
void fake_pitch(uint64_t unit); /* rows are a multiple of this (512) */
void fake_busy(bool busy);         /* streams have work that has not run */
void fake_interrupt(const char *call, void (*by)(void)); /* the next call of this name meets a signal handler first */
void fake_fail_next(const char *call, CUresult error); /* the next call of this name fails */

/* For the other files of the driver. */
void fake_hold(int64_t bytes); /* so much more is held */
bool fake_fails(const char *call, CUresult *error); /* is it this call's turn to fail? */

/* An allocation handle is mapped once more (+1), if it is live, or less (-1), also where it was released. */
bool fake_mapped(CUmemGenericAllocationHandle handle, int change);

/* fake_arrays.c */
CUresult fake_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream);
void fake_old_arrays(bool is); /* a driver that does not say what an array needs */
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

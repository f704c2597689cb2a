/* vmm.h: allocation handles, as vmm.c and vmm_share.c share them. Under the memory mutex where not said otherwise. */
#ifndef PARTAGE_SIM_VMM_H
#define PARTAGE_SIM_VMM_H

#include "blocks.h"

#define SIM_STORE_BYTES (UINT64_C(1) << 44) /* room for handles in one memfd; it is sparse */

/* The memfd in which this process's handles lie, and its free parts. */
struct sim_store {
	int fd;
	struct sim_space space;
};

struct sim_allocation {
	int device;    /* physical; -1: on the host */
	int fd;        /* the store, or an imported one of its own */
	uint64_t offset;    /* into fd */
	uint64_t size, granule;
	unsigned handles;   /* created or imported once, plus retains, less releases */
	unsigned mappings;
	bool imported;
	bool exported;
	uint64_t share;     /* who else may hold it: machine.h; 0: nobody, or it lies on the host */
	struct sim_allocation *next_shared; /* this process's with a share */
	struct sim_allocation *next_kept; /* what nothing keeps but a descriptor of it */
	CUmemAllocationProp prop;
	struct sim_multicast *team; /* a multicast object: multicast.c; NULL: memory */
};

/* The live handle, NULL: stale or foreign. */
struct sim_allocation *sim_allocation_from(CUmemGenericAllocationHandle handle);
/* external.c: is it a buffer of external memory, then it is freed and this is the result. Without the mutex. */
bool sim_external_free(CUdeviceptr p, CUresult *result);
/* vmm_share.c: has it been exported by a descriptor that is open somewhere? Then it is kept until it is not. */
bool sim_shared_keep(struct sim_allocation *allocation);
/* Frees what was kept so and is not any more; true: something was. The second without the mutex. */
bool sim_shared_poll(void);
void sim_shared_look(void);
void sim_allocation_put(struct sim_allocation *allocation); /* frees it, if nothing keeps it */
/* vmm_share.c: gives up this process's hold on a share; true: nobody else has one. */
bool sim_shared_put(struct sim_allocation *allocation);
/* Ends the mappings in a range of whole ones. What is queued is not waited for. */
CUresult sim_unmap(uint64_t start, uint64_t size);
/* One mapping of it less; frees it with the last one, if it is released. */
void sim_allocation_unmapped(struct sim_allocation *allocation);
/* Places it and makes it a live handle; on failure it stays the caller's. Without the mutex. */
CUresult sim_allocation_create(struct sim_allocation *allocation, CUmemGenericAllocationHandle *out);
/* Makes it a live handle with one reference. Without the mutex. */
CUresult sim_allocation_publish(struct sim_allocation *allocation, CUmemGenericAllocationHandle *out);

#endif

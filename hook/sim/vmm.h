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
	bool imported;  /* counted by the process that made it */
	bool exported;
	CUmemAllocationProp prop;
};

/* The live handle, NULL: stale or foreign. */
struct sim_allocation *sim_allocation_from(CUmemGenericAllocationHandle handle);
/* Makes it a live handle with one reference. Without the mutex. */
CUresult sim_allocation_publish(struct sim_allocation *allocation, CUmemGenericAllocationHandle *out);

#endif

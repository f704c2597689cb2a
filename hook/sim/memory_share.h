/* memory_share.h: device memory that other processes map: what ipc.c, pool_share.c and memory_arena.c share. All under
 * the memory mutex. */
#ifndef PARTAGE_SIM_MEMORY_SHARE_H
#define PARTAGE_SIM_MEMORY_SHARE_H

#include "blocks.h"

/* Where a part of this process's memory lies, so that another process can map it. */
struct sim_file_place {
	int32_t pid, fd;
	uint64_t inode;
	uint64_t offset, bytes; /* in that file; whole granules */
};

/* memory_arena.c: false: not in an arena that can be shared, or its descriptor is gone. */
bool sim_arena_place(int device, uint64_t start, uint64_t bytes, struct sim_file_place *place);
bool sim_arena_start(int device, uint64_t *start); /* made where there is none yet */
uint64_t sim_arena_spare(int device); /* offset in the arena's file at which nothing of the arena lies */

/* The share (machine.h) that granules of ours are held by, made at the first question; 0: the table is full. */
uint64_t sim_extent_share(int device, uint64_t start, uint64_t bytes);
enum sim_extent_end {
	SIM_EXTENT_OWN, /* it was never shared */
	SIM_EXTENT_LAST, /* nobody else holds it: no longer counted */
	SIM_EXTENT_HELD /* others do, and one of them pays for it */
};
enum sim_extent_end sim_extent_end(int device, uint64_t start); /* we give it up */

/* Memory of another process, mapped here. NULL: it is no more, or cannot be reached. `fd` -1: by pid and descriptor. */
struct sim_import *sim_import_open(const struct sim_file_place *place, int fd, int device, uint64_t share);
uint64_t sim_import_start(const struct sim_import *import);
void sim_import_close(struct sim_import *import);

#endif

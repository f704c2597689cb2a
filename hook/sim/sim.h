/* sim.h: what the files of the simulated driver share inside one process.
 *
 * Each public entry point `cuX` is generated (count, trace, fault, then our code): a file of hook/sim that implements
 * it defines `CUresult sim_cuX(...)` with the prototype of cuda.h (declared in the generated "sim_impl.h"). The
 * generator scans hook/sim/.c files for such definitions; what has none answers CUDA_ERROR_NOT_SUPPORTED and stands so in
 * the support table. A `_ptsz`/`_ptds` variant without code of its own runs the base function with
 * sim_thread.per_thread_stream set, so that a NULL stream means the thread's own. Same for `nvmlX` and `sim_nvmlX`.
 * Everything here is hidden; handles that programs see (CUcontext, CUstream ...) are pointers to these structures, each
 * starting with a tag, and are looked up in a table of live handles before they are trusted.
 */
#ifndef PARTAGE_SIM_SIM_H
#define PARTAGE_SIM_SIM_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

/* ---- machine.c: the shared file, client slots, locks, accounting -------------------------------------------------- */

extern struct sim_machine *sim_machine; /* NULL until sim_machine_open() succeeded */

int sim_machine_open(void);            /* idempotent, thread-safe; 0, or -1 with a reason for sim_log() */
int sim_machine_fd(void); /* for OFD locks on the machine file, -1 if it cannot be opened (after fork: a new one) */
int sim_client_slot(void); /* this process's client slot (after fork: a new one); -1: none is left */
int sim_client_slot_held(void); /* the same where it has one already; -1: not yet */
bool sim_client_alive(int slot); /* by the OFD lock; a dead client's memory is wiped as a side effect */
/* The pid of a client as the caller's pid namespace counts it, 0: the client is in none that this one contains. */
int sim_client_pid(int slot);
/* machine_nodes.c: looks which device nodes this process can open; called when a library starts. */
void sim_nodes_look(void);
bool sim_nodes_control(void); /* as found then: nvidiactl; true where the machine has no nodes */
bool sim_nodes_memory(void); /* nvidia-uvm */
bool sim_node_seen(uint32_t device);
void sim_lock(uint64_t *word); /* takeover-able, see machine.h; never held across sleeps or user code */
void sim_unlock(uint64_t *word);
uint64_t sim_now(void); /* CLOCK_MONOTONIC, ns */
/* A real driver is on this machine and nobody forces us: neither library may answer. Logged as `what`. */
bool sim_real_driver_refuses(const char *what);
void sim_log(const char *format, ...) __attribute__((format(printf, 1, 2))); /* only when PARTAGE_SIM_LOG is set */

/* Change this process's physical bytes on a device by delta. Growth fails (-1) where the card is full; keeps `peak`. */
int sim_account(int device, int64_t delta, bool context);
/* machine_shares.c: memory that other processes may hold too (struct sim_share). Make: bytes that this process has
 * accounted become shared; 0: no room in the table. Join: hold what another made; -1: the card is full, where nobody
 * holds it any more; with 0 bytes somebody must. Leave: true where nobody else holds it. */
uint64_t sim_share_make(int device, uint64_t bytes);
int sim_share_join(int device, uint64_t id, uint64_t bytes);
bool sim_share_leave(int device, uint64_t id);
/* One context more or less of this process on a device. */
void sim_count_context(int device, int change);
/* Bytes held on a device by all live clients (reaps dead ones). */
uint64_t sim_device_used(int device);

/* Ordinal -> physical device index by CUDA_VISIBLE_DEVICES, frozen at cuInit. CUdevice handles are ordinals. */
int sim_visible_count(void);
int sim_physical(CUdevice ordinal); /* -1 if there is none */

/* ---- generated entry layer ----------------------------------------------------------------------------------------- */

struct sim_thread {
	bool per_thread_stream; /* the call came through a _ptsz/_ptds entry point */
	/* current context stack: context.c */
	struct sim_context *stack[32];
	struct sim_green *green[32]; /* the green context by which it was made current; NULL: by itself */
	int depth;
};
extern _Thread_local struct sim_thread sim_thread;

bool sim_initialized(void); /* cuInit has succeeded in this process (false again in a forked child) */

/* ---- context.c ------------------------------------------------------------------------------------------------------ */

struct sim_context {
	uint32_t tag; /* SIM_TAG_CONTEXT */
	int device; /* physical index */
	CUdevice ordinal;
	bool primary;
	bool alive;
	bool closing; /* gets no more streams; under sim_engine_mutex */
	unsigned flags;
	uint64_t id;
	struct sim_stream *legacy; /* the NULL stream, engine.c makes it */
	struct sim_stream *streams; /* list of all streams of the context */
	struct sim_stream *barrier; /* what cuCtxRecordEvent and cuCtxWaitEvent queue; made when first needed */
	struct sim_memory_space *memory; /* memory.c: packing of small blocks */
	int error; /* sticky CUresult that all further work gets; atomic; 0 = none */
	struct sim_module *modules; /* module.c: list of the modules loaded into it */
	struct sim_texels *arrays; /* array.c: arrays and mip-maps made in it */
	/* context.c's own */
	unsigned attached; /* cuCtxAttach; created contexts only */
	unsigned api_version;
	unsigned peers; /* bit per physical device whose memory it may reach */
	uint64_t limit[CU_LIMIT_PERSISTING_L2_CACHE_SIZE + 1];
	CUfunc_cache cache_config;
	CUsharedconfig shared_config;
};

struct sim_context *sim_current(void); /* NULL: no current context (CUDA_ERROR_INVALID_CONTEXT) */
/* The current context, or why a call that needs one fails: not initialised, none, destroyed, or the context's own error. */
CUresult sim_require(struct sim_context **context);
/* The device's primary context; its handle stays the same while the process lives, active or not. */
struct sim_context *sim_primary(int device);

/* ---- engine.c / stream.c ---------------------------------------------------------------------------------------------- */

/* Work for a stream. `run` is called by the device's worker thread in stream order, after `device_ns` of engine time was
 * granted and has passed; it must not call back into public entry points. `arg` is copied (at most SIM_WORK_ARG bytes). */
#define SIM_WORK_ARG 256
struct sim_work {
	uint64_t device_ns; /* engine time it needs; 0 = none (host functions, event records, frees) */
	uint32_t unit; /* SIM_UNIT_*: of which engine */
	void (*run)(void *arg);
	size_t arg_size;
	unsigned char arg[SIM_WORK_ARG];
};

struct sim_stream;
/* The stream a handle means for this call (NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, per-thread entry points).
 * Returns NULL and sets *error where there is no context or the handle is not a live stream. */
struct sim_stream *sim_stream_of(CUstream handle, CUresult *error);
/* Queue work; blocks while the stream's queue is full. */
CUresult sim_enqueue(struct sim_stream *stream, const struct sim_work *work);
/* Queue work and wait until it has run (synchronous copies). */
CUresult sim_enqueue_wait(struct sim_stream *stream, const struct sim_work *work);
CUresult sim_stream_wait(struct sim_stream *stream); /* all work queued so far has run */
CUresult sim_context_wait(struct sim_context *context);
bool sim_stream_capturing(struct sim_stream *stream);
int sim_stream_device(struct sim_stream *stream); /* physical index */
struct sim_context *sim_stream_context(struct sim_stream *stream);
void sim_streams_init(struct sim_context *context); /* called by context.c when a context is made */
void sim_streams_destroy(struct sim_context *context); /* called by context.c: waits, frees */
/* What a context answers whose device fell off the bus. */
#define SIM_ERROR_LOST CUDA_ERROR_UNKNOWN
/* The error that every call on this context gets: its own sticky one, or the loss of its device; else CUDA_SUCCESS. */
CUresult sim_context_error(const struct sim_context *context);
/* module.c; called by context.c after sim_streams_destroy(): unloads what is still loaded. */
void sim_modules_destroy(struct sim_context *context);
/* Engine time of a copy of n bytes on a device by its profile. */
uint64_t sim_copy_ns(int device, size_t bytes);

/* ---- memory.c ----------------------------------------------------------------------------------------------------------- */

/* Is [p, p+n) inside live device memory (plain, managed, pool, mapped VMM)? Host pointers to it are the same address: the
 * arena is mapped read-write in this process, so device memory can be touched with memcpy. */
bool sim_is_device(CUdeviceptr p, size_t n);
/* The same, or in pinned host memory (allocated or registered): what a device could reach. */
bool sim_is_mapped(CUdeviceptr p, size_t n);
/* A program has waited for the device: pools give back what is beyond their release threshold. Called by whatever
 * synchronises a stream, event or context, after it has waited and without locks. */
void sim_pools_synchronized(int device);
/* Device memory for the driver's own use (a module's variables): as cuMemAlloc would give, zeroed, but no program may free
 * it. n > 0. Counted as contexts and modules are. CUDA_ERROR_OUT_OF_MEMORY where the card is full. */
CUresult sim_memory_take(struct sim_context *context, size_t n, CUdeviceptr *out);
void sim_memory_put(struct sim_context *context, CUdeviceptr p);

/* ---- handles.c: live handles of every kind, so that a stale or foreign pointer is an error and not a crash ------------- */

enum sim_tag {
	SIM_TAG_CONTEXT = 0x43545831,
	SIM_TAG_STREAM,
	SIM_TAG_EVENT,
	SIM_TAG_MODULE,
	SIM_TAG_LIBRARY,
	SIM_TAG_FUNCTION,
	SIM_TAG_KERNEL,
	SIM_TAG_POOL,
	SIM_TAG_ALLOCATION,
	SIM_TAG_LINK,
	SIM_TAG_GRAPH,
	SIM_TAG_GRAPH_NODE,
	SIM_TAG_GRAPH_EXEC,
	SIM_TAG_EXTERNAL,
	SIM_TAG_USER_OBJECT,
	SIM_TAG_GREEN,
	SIM_TAG_GREEN_CONTEXT, /* a green context as a context */
	SIM_TAG_RESOURCE_DESC,
	SIM_TAG_ARRAY,
	SIM_TAG_MIPMAP,
	SIM_TAG_TEXREF,
	SIM_TAG_SURFREF,
	SIM_TAG_TEXTURE,
	SIM_TAG_SURFACE,
	SIM_TAG_SEMAPHORE
};
void sim_handle_add(void *handle, enum sim_tag tag);
bool sim_handle_is(const void *handle, enum sim_tag tag); /* live and of this kind */
bool sim_handle_drop(void *handle); /* false: it was not there; another thread has dropped it */

#endif

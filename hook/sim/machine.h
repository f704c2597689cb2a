/* machine.h: the simulated machine, one mapped file shared by driver, NVML and all processes.
 *
 * Words: a *machine* is what a profile describes: devices, links, versions, costs. A *seat-holder* of it is a client
 * process, with a *client slot* whose liveness is an OFD lock on byte SIM_LOCK_CLIENT + index (dropped by the kernel at
 * death, so a client may be killed at any instruction). Own locks are futex words (client slot + 1, generation) that
 * may be taken over when the owner's OFD lock is free: never process-shared mutexes, condition variables, semaphores.
 *
 * Where: $PARTAGE_SIM_DIR, else /run/partage-sim where root made a machine for all users, else
 * $XDG_RUNTIME_DIR/partage-sim, else /tmp/partage-sim-<uid>; the file is `machine`, and beside it lies `pids`, in which
 * clients tell the kernel who they are (machine_pids.c). Whoever comes first makes both from the profile named by
 * $PARTAGE_SIM (default SIM_DEFAULT_PROFILE); `partage sim create` writes them from any TOML file. Python reads the same
 * structures through cffi, so: fixed-width fields, no includes but stdint.h, no function-like macros outside the guard
 * below.
 *
 * A machine may have *device nodes* (`partage sim tree`): files that stand for /dev/nvidiaN &c. A process then sees the
 * devices whose nodes it can open, as with real ones: a container sees those that were mounted into it. A node is known
 * by device number and inode, so that nobody can make one himself.
 */
#ifndef PARTAGE_SIM_MACHINE_H
#define PARTAGE_SIM_MACHINE_H

#include <stdint.h>

#define SIM_MACHINE_MAGIC  UINT64_C(0x314d495347545250) /* "PRTGSIM1" */
#define SIM_MACHINE_LAYOUT 4
#define SIM_DEVICES        16
#define SIM_CLIENTS        1024
#define SIM_COSTS          64
#define SIM_FAULTS         32
#define SIM_EVENTS         64              /* ring of XID events */
#define SIM_MIG_PROFILES   8         /* GPU instance profiles of one machine's cards */
#define SIM_SWITCHES       8
#define SIM_MEETINGS       64
#define SIM_SHARES         256 /* exported allocation handles of one device */
#define SIM_BUCKETS   128 /* busy-time history: SIM_BUCKET_NS each, indexed by (now / SIM_BUCKET_NS) % SIM_BUCKETS */
#define SIM_BUCKET_NS 50000000

/* OFD lock bytes of the machine file */
#define SIM_LOCK_SETUP  1
#define SIM_LOCK_EVENT  2 /* held while an event is written; by Python too */
#define SIM_LOCK_CLIENT 4096

/* sim_link.kind */
#define SIM_LINK_SYSTEM     0
#define SIM_LINK_NODE       1
#define SIM_LINK_HOSTBRIDGE 2
#define SIM_LINK_SWITCH     3
#define SIM_LINK_NVLINK     4
#define SIM_LINK_NVSWITCH   5

/* What a device works with. Each has a timeline of its own, so that copies run beside kernels. */
#define SIM_UNIT_COMPUTE  0 /* kernels, fills, copies within the device */
#define SIM_UNIT_COPY_IN  1 /* host to device */
#define SIM_UNIT_COPY_OUT 2 /* device to host, and to another device */
#define SIM_UNITS         3

/* sim_device_model.mig */
#define SIM_MIG_NONE     0 /* a whole device; the card may be capable of MIG or not */
#define SIM_MIG_CARD     1 /* a card in MIG mode: NVML lists it, CUDA runs on its instances only */
#define SIM_MIG_INSTANCE 2 /* a GPU instance with one compute instance; `parent` is its card */

/* How long a kernel takes: the first rule whose pattern (fnmatch) matches the kernel's name wins. */
struct sim_cost {
	char pattern[64];
	uint64_t fixed_ns; /* per launch */
	uint64_t wave_ns; /* per wave of blocks (ceil(blocks / (sms * blocks_per_sm))) */
	int32_t duration_arg; /* >= 0: this argument (u32/u64 by size) is the duration in ns; -1: none */
	uint32_t collective; /* 1: waits for its partner on another device */
};

/* What a profile says of one device. Never changes after creation. */
struct sim_device_model {
	char name[96]; /* contains SIMULATED */
	char uuid[64]; /* GPU-..., fixed by (machine seed, index) */
	char pci[32]; /* 00000000:17:00.0 */
	char serial[32];
	char part[32]; /* MIG profile name, or empty */
	uint64_t memory; /* bytes, total as driver and NVML report it; contexts and allocations get memory - reserved */
	uint64_t reserved; /* bytes of `memory` that nobody can allocate; NVML shows them apart (v2) or as used (v1) */
	uint64_t context; /* bytes each context takes */
	uint64_t module; /* bytes each loaded module takes */
	uint64_t granule; /* physical granularity (2 MiB) */
	uint64_t pool_granule; /* growth of the default stream-ordered pool (32 MiB) */
	uint64_t pitch; /* pitch alignment (512) */
	uint32_t sms;
	uint32_t threads_per_sm;
	uint32_t blocks_per_sm;
	uint32_t cc_major, cc_minor;
	uint32_t clock_khz, memory_clock_khz, bus_width, l2_bytes;
	uint32_t architecture; /* nvmlDeviceArchitecture_t */
	uint32_t numa;
	uint32_t power_limit_mw;
	uint32_t context_ms; /* how long context creation takes */
	uint32_t copy_mbps; /* host <-> device and device copies, MB/s; 0 = takes no engine time */
	uint32_t queue_depth; /* launches that may be queued per channel before launch blocks (1024) */
	uint32_t slice_us; /* engine time slice between processes (2000) */
	uint32_t switch_us; /* how long the compute engine takes to go from one context to another */
	/* What NVML tells beside the above. */
	char board_part[32];
	char vbios[32];
	uint64_t bar1; /* bytes */
	uint32_t pci_device_id; /* device << 16 | vendor */
	uint32_t pci_subsystem_id;
	uint32_t brand; /* nvmlBrandType_t */
	uint32_t cores_per_sm;
	uint32_t pcie_gen, pcie_width;
	uint32_t nvlink_version; /* 0 = no NVLink */
	uint32_t idle_mw;
	uint32_t fans; /* 0: passively cooled */
	uint32_t ecc; /* 1: has ECC, and it is on */
	uint32_t minor; /* N of /dev/nvidiaN */
	uint32_t mig; /* SIM_MIG_* */
	uint32_t mig_capable; /* most instances the card can be cut into; 0: no MIG */
	int32_t parent; /* index of the card, -1 unless SIM_MIG_INSTANCE */
	uint32_t gpu_instance, compute_instance;
	uint32_t mig_profile; /* index into sim_machine.mig_profile */
	uint32_t mig_start; /* first memory slice */
	uint32_t ncosts;
	struct sim_cost cost[SIM_COSTS];
};

/* A fault to inject: the n-th and following `count` calls of `call` return `code`. */
struct sim_fault {
	/* entry point, "drop:NAME" (symbol does not exist), "slow-context", "foreign-pids", or "nvml" (every question
	 * to NVML about `device`) */
	char call[64];
	int32_t device; /* -1 = any */
	int32_t code; /* CUresult / nvmlReturn_t */
	uint64_t after; /* calls let through first */
	uint64_t count; /* calls that fail; 0 = for ever */
	uint64_t seen; /* calls seen so far (atomic) */
	uint32_t active; /* 1 = armed; stored last */
	uint32_t reserved;
};

/* One exported allocation handle: physical memory that several processes may hold, also when its maker has released it
 * or died. Its bytes stand in the `memory` of one of its holders, the payer, and move on to another when that one lets
 * go. Under the device's lock. */
struct sim_share {
	uint64_t id; /* 0 = free; never given twice */
	uint64_t bytes;
	int32_t payer; /* client slot */
	uint32_t reserved;
	uint64_t holders[SIM_CLIENTS / 64]; /* bit per client slot, the payer's too */
};

/* One client process on one device. Written by its owner alone, except where the device lock is held. */
struct sim_client_device {
	uint64_t memory; /* bytes of physical device memory held: blocks, pools, VMM, contexts, modules */
	uint64_t own; /* `memory` without shares that it pays: what it is counted again from, see sim_share */
	uint64_t contexts; /* bytes of `memory` that are contexts and modules */
	uint32_t ncontexts; /* contexts open now; they may cost nothing, but NVML lists their process */
	uint32_t reserved0;
	uint64_t pending_ns; /* time of the compute engine granted and not yet used */
	uint64_t granted_at; /* virtual time at which the last such grant begins */
	uint64_t busy_ns; /* time of the compute engine used so far */
	uint64_t copy_ns[SIM_UNITS]; /* time of each copy engine used so far; [SIM_UNIT_COMPUTE] is not used */
	uint64_t bucket_at[SIM_BUCKETS]; /* which bucket number the entry belongs to */
	uint32_t bucket_ns[SIM_BUCKETS];
};

struct sim_client {
	uint32_t state; /* 0 free, 1 used */
	uint32_t generation;
	int32_t pid; /* as the process sees itself */
	int32_t reserved0;
	uint64_t start_time;
	uint64_t pid_ns;
	char name[64];
	uint64_t calls; /* driver calls so far, all entry points */
	struct sim_client_device device[SIM_DEVICES];
};

/* One device: what changes while the machine runs. */
struct sim_device_state {
	uint64_t lock; /* 0 free, else generation << 32 | waiters << 31 | client slot + 1; futex: the low 32 bits */
	uint64_t peak; /* most bytes of physical memory ever held by live clients, exact: kept under `lock` */
	uint32_t lost; /* 1: fell off the bus */
	uint32_t xid; /* last XID, 0 = none */
	uint64_t reserved0[2];
	uint64_t engine_until
	        [SIM_UNITS]; /* CLOCK_MONOTONIC ns: end of the time granted so far (the virtual timelines); timeline.c */
	uint64_t engine_busy_ns; /* of the compute engine */
	uint64_t
	        switches; /* times the compute engine went from one context to another, switch_us each: nobody's time */
	uint64_t
	        used; /* sum of client[].device[].memory over `holders`, dead ones included until noticed; under `lock` */
	uint64_t holders[SIM_CLIENTS / 64]; /* bit per client slot whose memory here is not 0; under `lock` */
	uint32_t nshares; /* entries of `share` ever used; under `lock` */
	uint32_t reserved1;
	struct sim_share share[SIM_SHARES];
	uint64_t reserved[12];
};

/* One collective kernel that waits for its partner on another device. Changed under sim_machine.meeting_lock. */
struct sim_meeting {
	uint64_t key; /* what partners have in common; 0 = free */
	uint64_t item; /* which of its client's items waits */
	int32_t device;
	int32_t slot; /* the client; entries of the dead are taken over ... */
	uint32_t generation; /* ... also where its slot is another's by now */
	uint32_t met; /* 1: the partner came; the waiting one frees the entry */
};

struct sim_link {
	uint32_t kind;
	uint32_t lanes;
};

/* A GPU instance profile of this machine's MIG cards. */
struct sim_mig_profile {
	char name[32]; /* 1g.10gb */
	uint64_t memory; /* bytes */
	uint32_t id; /* as nvidia-smi mig -lgip shows it */
	uint32_t kind; /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t slices; /* compute slices */
	uint32_t memory_slices;
	uint32_t sms;
	uint32_t copy_engines;
	uint32_t nstarts;
	uint32_t start[8]; /* memory slices where it may begin */
};

/* A file that stands for a device node. */
struct sim_node {
	uint64_t device; /* st_dev; both 0: there is none */
	uint64_t inode; /* st_ino */
};

/* The nodes of a machine, where it has any. A card has one node, a MIG instance those of its two capabilities. */
#define SIM_NODE_CARD    0
#define SIM_NODE_GPU     0 /* of an instance: the GPU instance's capability */
#define SIM_NODE_COMPUTE 1 /* of an instance: the compute instance's */
#define SIM_NODES_PATH   256
struct sim_nodes {
	uint32_t used; /* 1: devices are seen by their nodes; stored last */
	uint32_t reserved;
	char directory[SIM_NODES_PATH]; /* where they lie on the host; containers have them in /dev */
	struct sim_node control; /* nvidiactl */
	struct sim_node memory; /* nvidia-uvm */
	struct sim_node device[SIM_DEVICES][2];
};

/* An XID as it happened. Written under SIM_LOCK_EVENT, `sequence` last; then event_count, event_word and the wake. */
struct sim_event {
	uint64_t sequence; /* 1, 2, 3 ...: entry (sequence - 1) % SIM_EVENTS */
	int32_t device;
	uint32_t xid;
};

struct sim_machine {
	uint64_t magic; /* stored last at creation */
	uint32_t layout;
	uint32_t size;
	uint32_t ndev;
	uint32_t cuda_version; /* 13050 */
	char profile[64];
	char driver[32]; /* "615.71.05" as NVML reports it; digits only, since tools parse it */
	uint64_t seed;
	struct sim_device_model model[SIM_DEVICES];
	struct sim_link link[SIM_DEVICES][SIM_DEVICES];
	uint32_t faults; /* entries of `fault` ever used; raised after one is written, so that none costs one load */
	uint32_t reserved_faults;
	struct sim_fault fault[SIM_FAULTS];
	struct sim_device_state device[SIM_DEVICES];
	struct sim_client client[SIM_CLIENTS];
	uint64_t meeting_lock;
	struct sim_meeting meeting[SIM_MEETINGS];
	uint32_t nmig_profiles;
	uint32_t nswitches;
	struct sim_mig_profile mig_profile[SIM_MIG_PROFILES];
	char switch_pci[SIM_SWITCHES][32];
	uint64_t share_id; /* last one given */
	uint64_t event_count; /* events so far */
	uint32_t event_word; /* futex: +1 with every event */
	uint32_t reserved1;
	struct sim_event event[SIM_EVENTS];
	struct sim_nodes nodes;
};

#endif

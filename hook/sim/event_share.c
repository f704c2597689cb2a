/* event_share.c: events between processes: cuIpcGetEventHandle, cuIpcOpenEventHandle.
 *
 * Called by programs, and by event.c for events that were made with CU_EVENT_INTERPROCESS or opened here. Such an event
 * has two counters in a memfd of its maker's, which importers map
 * through /proc (as cuIpc memory, see memory_share.c):
 * records begun and the last one completed, by whichever process. A recorder that dies takes its record with it: who
 * waits sees that, and goes on. What can go wrong: the maker is gone or elsewhere when the handle is opened.
 */
#include "event_share.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "context.h"
#include "sim_impl.h"

#define EVENT_MAGIC 0x56455043u /* "CPEV" */
#define EVENTS      4096
#define PATIENCE_NS 2000000 /* after so long a sleeper asks whether the recorder lives */

struct sim_shared_event {
	uint64_t recorded; /* records that were queued, by all processes */
	uint64_t completed; /* the latest of them that has run */
	uint32_t word; /* futex: +1 when one has */
	int32_t recorder; /* client slot of who queued the last */
	uint32_t generation; /* of that slot */
	uint32_t used; /* 1: some event of the maker's stands here */
};

struct event_handle {
	uint32_t magic, index;
	int32_t pid, fd;
	uint64_t inode;
};
_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "a handle must fit");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sim_shared_event *own;
static int own_fd = -1;
static uint64_t own_inode;

static bool open_own(void)
{
	struct stat st;

	if (own)
		return true;
	own_fd = memfd_create("partage-sim-events", MFD_CLOEXEC);
	if (own_fd < 0 || ftruncate(own_fd, sizeof *own * EVENTS) < 0 || fstat(own_fd, &st) < 0)
		return false;
	void *p = mmap(NULL, sizeof *own * EVENTS, PROT_READ | PROT_WRITE, MAP_SHARED, own_fd, 0);
	if (p == MAP_FAILED)
		return false;
	madvise(p, sizeof *own * EVENTS, MADV_DONTFORK);
	own_inode = st.st_ino;
	own = p;
	return true;
}

struct sim_shared_event *sim_shared_event_new(void)
{
	struct sim_shared_event *shared = NULL;

	pthread_mutex_lock(&mutex);
	for (unsigned i = 0; open_own() && !shared && i < EVENTS; i++) {
		/* What is still to complete is a record of the one that stood here. */
		if (own[i].used || own[i].completed != own[i].recorded)
			continue;
		shared = &own[i];
		shared->used = 1;
	}
	pthread_mutex_unlock(&mutex);
	return shared;
}

static bool is_own(const struct sim_shared_event *shared)
{
	return own && shared >= own && shared < own + EVENTS;
}

void sim_shared_event_drop(struct sim_shared_event *shared)
{
	pthread_mutex_lock(&mutex);
	if (is_own(shared)) /* others' pages stay mapped: what is queued here may name them */
		shared->used = 0;
	pthread_mutex_unlock(&mutex);
}

/* ---- records and waits ------------------------------------------------------------------------------------------- */

struct publish {
	struct sim_shared_event *shared;
	uint64_t mark;
};

static void publish(void *arg)
{
	struct publish p;

	memcpy(&p, arg, sizeof p);
	uint64_t seen = __atomic_load_n(&p.shared->completed, __ATOMIC_ACQUIRE);
	while (seen < p.mark && !__atomic_compare_exchange_n(&p.shared->completed, &seen, p.mark, false,
	                                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	__atomic_add_fetch(&p.shared->word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &p.shared->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

CUresult sim_shared_event_record(struct sim_shared_event *shared, struct sim_stream *stream)
{
	struct sim_work work = {.run = publish, .arg_size = sizeof(struct publish)};
	struct publish p = {shared, 0};
	int slot = sim_client_slot();

	shared->recorder = slot;
	shared->generation = slot < 0 ? 0 : sim_machine->client[slot].generation;
	p.mark = __atomic_add_fetch(&shared->recorded, 1, __ATOMIC_ACQ_REL);
	memcpy(work.arg, &p, sizeof p);
	CUresult result = sim_enqueue(stream, &work);
	if (result != CUDA_SUCCESS)
		publish(work.arg); /* the stream will never come to it */
	return result;
}

uint64_t sim_shared_event_mark(const struct sim_shared_event *shared)
{
	return __atomic_load_n(&shared->recorded, __ATOMIC_ACQUIRE);
}

static bool recorder_lives(const struct sim_shared_event *shared)
{
	int slot = shared->recorder;

	return slot >= 0 && slot < SIM_CLIENTS && sim_machine->client[slot].generation == shared->generation &&
	       sim_client_alive(slot);
}

bool sim_shared_event_reached(struct sim_shared_event *shared, uint64_t mark)
{
	return __atomic_load_n(&shared->completed, __ATOMIC_ACQUIRE) >= mark || !recorder_lives(shared);
}

void sim_shared_event_sleep(struct sim_shared_event *shared, uint64_t mark)
{
	const struct timespec patience = {.tv_nsec = PATIENCE_NS};

	for (;;) {
		uint32_t word = __atomic_load_n(&shared->word, __ATOMIC_ACQUIRE);
		if (sim_shared_event_reached(shared, mark))
			return;
		syscall(SYS_futex, &shared->word, FUTEX_WAIT, word, &patience, NULL, 0);
	}
}

static bool poll_item(const void *arg)
{
	struct publish p;

	memcpy(&p, arg, sizeof p);
	return sim_shared_event_reached(p.shared, p.mark);
}

void sim_shared_event_item(struct sim_shared_event *shared, struct sim_item *item)
{
	struct publish p = {shared, sim_shared_event_mark(shared)};

	*item = (struct sim_item){.kind = SIM_ITEM_POLL, .poll = poll_item};
	item->work.arg_size = sizeof p;
	memcpy(item->work.arg, &p, sizeof p);
}

/* ---- handles ------------------------------------------------------------------------------------------------------ */

CUresult sim_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	struct sim_shared_event *shared = sim_event_shared(event);
	struct stat st;

	if (!sim_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!sim_handle_is(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!handle || !shared || !is_own(shared))
		return CUDA_ERROR_INVALID_VALUE;
	if (fstat(own_fd, &st) < 0 || st.st_ino != own_inode)
		return CUDA_ERROR_OPERATING_SYSTEM;
	struct event_handle out = {EVENT_MAGIC, (uint32_t)(shared - own), getpid(), own_fd, own_inode};
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &out, sizeof out);
	return CUDA_SUCCESS;
}

/* Files of other processes that are mapped here, for good. */
struct opened {
	struct opened *next;
	int32_t pid;
	uint64_t inode;
	struct sim_shared_event *map;
};

static struct opened *opened;

static struct sim_shared_event *map_file(const struct event_handle *in)
{
	struct stat st;
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)in->pid, (int)in->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	void *p = MAP_FAILED;
	if (fstat(fd, &st) == 0 && st.st_ino == in->inode)
		p = mmap(NULL, sizeof *own * EVENTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, sizeof *own * EVENTS, MADV_DONTFORK);
	return p;
}

/* NULL: it cannot be reached. */
static struct sim_shared_event *find_event(const struct event_handle *in)
{
	struct opened *file = opened;

	while (file && (file->pid != in->pid || file->inode != in->inode))
		file = file->next;
	if (!file) {
		struct sim_shared_event *map = map_file(in);
		file = map ? calloc(1, sizeof *file) : NULL;
		if (!file)
			return NULL;
		*file = (struct opened){opened, in->pid, in->inode, map};
		opened = file;
	}
	return &file->map[in->index];
}

CUresult sim_cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	struct event_handle in;

	if (!sim_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	memcpy(&in, &handle, sizeof in);
	if (!out || in.magic != EVENT_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (in.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* a process has its own event already */
	pthread_mutex_lock(&mutex);
	struct sim_shared_event *shared = in.index < EVENTS ? find_event(&in) : NULL;
	pthread_mutex_unlock(&mutex);
	if (!shared)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_event_open(out, shared);
	if (result != CUDA_SUCCESS)
		sim_shared_event_drop(shared);
	return result;
}

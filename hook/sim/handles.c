/* handles.c: the table of live handles, so that a stale or foreign handle is an error and not a crash.
 *
 * Called by every entry point that takes a context, stream, event, module, pool or allocation. A pointer is looked up
 * here before anybody follows it. A hash table with chained entries under striped locks: launches on different streams
 * rarely meet. What can go wrong: no memory for an entry; the handle is then never seen as live.
 */
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"

#define BUCKETS 16384
#define STRIPES 64

struct entry {
	struct entry *next;
	const void *handle;
	enum sim_tag tag;
};

static struct entry *buckets[BUCKETS];
static pthread_mutex_t stripes[STRIPES] = {[0 ... STRIPES - 1] = PTHREAD_MUTEX_INITIALIZER};

static unsigned bucket_of(const void *handle)
{
	return (unsigned)(((uintptr_t)handle >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 50) % BUCKETS;
}

void sim_handle_add(void *handle, enum sim_tag tag)
{
	struct entry *entry = malloc(sizeof *entry);
	unsigned bucket = bucket_of(handle);

	if (!entry)
		return;
	entry->handle = handle;
	entry->tag = tag;
	pthread_mutex_lock(&stripes[bucket % STRIPES]);
	entry->next = buckets[bucket];
	buckets[bucket] = entry;
	pthread_mutex_unlock(&stripes[bucket % STRIPES]);
}

bool sim_handle_is(const void *handle, enum sim_tag tag)
{
	unsigned bucket = bucket_of(handle);
	bool found = false;

	if (!handle)
		return false;
	pthread_mutex_lock(&stripes[bucket % STRIPES]);
	for (struct entry *entry = buckets[bucket]; entry && !found; entry = entry->next)
		found = entry->handle == handle && entry->tag == tag;
	pthread_mutex_unlock(&stripes[bucket % STRIPES]);
	return found;
}

bool sim_handle_drop(void *handle)
{
	unsigned bucket = bucket_of(handle);
	struct entry *gone = NULL;

	pthread_mutex_lock(&stripes[bucket % STRIPES]);
	for (struct entry **link = &buckets[bucket]; *link; link = &(*link)->next) {
		if ((*link)->handle == handle) {
			gone = *link;
			*link = gone->next;
			break;
		}
	}
	pthread_mutex_unlock(&stripes[bucket % STRIPES]);
	free(gone);
	return gone != NULL;
}

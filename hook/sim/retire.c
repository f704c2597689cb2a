/* retire.c: when code that was unloaded is freed.
 *
 * A thread looks a function up and reads what it is without a lock, and another one may unload the module or destroy the
 * context meanwhile, which is a mistake of the program, and must not be a crash. So what was unloaded is only freed when
 * no thread is inside an entry point: who comes in later cannot find it, since its handles are gone. Called by module.c,
 * and by the entry layer when the last thread leaves. What can go wrong: no memory for the note; the structure then stays.
 */
#include "retire.h"

#include <pthread.h>
#include <stdlib.h>

#include "entry.h"

struct retired {
	void (*end)(void *what);
	void *what;
	struct retired *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct retired *all;

void sim_retire(void (*end)(void *what), void *what)
{
	struct retired *retired = malloc(sizeof(*retired));
	if (!retired)
		return;
	retired->end = end;
	retired->what = what;
	pthread_mutex_lock(&mutex);
	retired->next = all;
	__atomic_store_n(&all, retired, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
}

void sim_entry_idle(void)
{
	struct retired *gone = NULL, *next;
	if (!__atomic_load_n(&all, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&mutex);
	if (sim_entry_inside() == 0) {
		gone = all;
		__atomic_store_n(&all, NULL, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&mutex);
	for (; gone; gone = next) {
		next = gone->next;
		gone->end(gone->what);
		free(gone);
	}
}

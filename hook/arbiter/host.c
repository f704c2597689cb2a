/* host.c: the loop of the arbiter: read what tenants claim, let the core decide, publish, sleep.
 *
 * Called by main.c and, through cffi, by the node agent; see host.h for what can go wrong. A round costs one system call,
 * its sleep, and one for each word that changes; all else is read from mapped files. Nobody who is idle makes a round happen: the loop sleeps until a tenant rings, a directory
 * changes, or the core's own time comes, and only while somebody waits or works also until the next heartbeat. */
#include "host_local.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BEAT_EVERY (PTG_HEARTBEAT_NS / 2)
#define TELL_EVERY (60000 * HOST_MS) /* between two lines in the log about the same */
#define SLICE_NS   100000            /* a round is shorter */

uint64_t host_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- opening and closing ------------------------------------------------------------------------------------------------ */

/* The root must be a directory in which nobody else can put anything. */
static int open_root(struct ptg_host *host, char *why, size_t size)
{
	struct stat st;
	host->root_fd = open(host->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (host->root_fd < 0 || fstat(host->root_fd, &st)) {
		snprintf(why, size, "%s: %s", host->root, strerror(errno));
		return -1;
	}
	if ((st.st_uid != geteuid() && geteuid() != 0) || st.st_mode & 022) {
		snprintf(why, size, "%s: owned by uid %u, mode %04o; a directory of uid %u alone is needed", host->root,
		         (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
		return -1;
	}
	return 0;
}

struct ptg_host *ptg_host_open(const struct ptg_host_options *options, char *why, uint64_t size)
{
	struct ptg_host *host = calloc(1, sizeof *host);
	if (!host) {
		snprintf(why, size, "no memory");
		return NULL;
	}
	host->root_fd = host->serving_fd = host->inotify = host->root_watch = host->events_end = host->events_set = -1;
	host->log_fd = options->log_fd;
	host->flags = options->flags;
	host->idle_ns = options->idle_ns;
	host->heard = UINT32_MAX;
	host->changed = true; /* counted once even where there is nobody */
	host->has_waitv = !(options->flags & PTG_HOST_NO_WAITV) && wait_supported();
	if (snprintf(host->root, sizeof host->root, "%s", options->root) >= (int)sizeof host->root ||
	    snprintf(host->lock_dir, sizeof host->lock_dir, "%s", options->lock_dir) >= (int)sizeof host->lock_dir) {
		snprintf(why, size, "a path of %zu bytes or more", sizeof host->root);
	} else if (!open_root(host, why, size) && !locks_serve(host, why, size)) {
		host->arb = arb_new();
		int guarded = guard_install();
		if (host->arb && !guarded) {
			watch_open(host);
			return host;
		}
		snprintf(why, size, "%s", host->arb ? strerror(-guarded) : "no memory");
	}
	ptg_host_close(host);
	return NULL;
}

void ptg_host_close(struct ptg_host *host)
{
	ptg_host_stop(host);
	if (host->has_thread)
		pthread_join(host->thread, NULL);
	while (host->tenants)
		tenant_free(host, host->tenants);
	locks_close(host);
	watch_close(host);
	if (host->arb)
		arb_free(host->arb);
	if (host->root_fd >= 0)
		close(host->root_fd);
	free(host);
}

void ptg_host_stop(struct ptg_host *host)
{
	atomic_store(&host->stop, 1);
	host_kick(host);
}

/* ---- who is there --------------------------------------------------------------------------------------------------------- */

/* Leave the bell of a tenant that rings very often out of our sleep for a moment: it costs others our time, and what it
 * wants is heard as well a moment later. */
static void count_ring(struct tenant *t, uint64_t now)
{
	if (rings_too_often(&t->rings, now))
		t->mute_until = now + MUTE_RINGING;
}

/* Listen to the bells and look at what is due; what a policy or a directory says is known afterwards. */
static void look_at_tenants(struct ptg_host *host, uint64_t now)
{
	for (struct tenant *t = host->tenants; t; t = t->next) {
		t->rings_now = false;
		if (t->ledger)
			claims_bell(t);
		if (t->rings_now) {
			t->rung = true;
			count_ring(t, now);
			if (!t->used)
				t->look_at = now;
		}
		if (t->look_at <= now)
			tenant_look(host, t, now);
		else if (t->used)
			tenant_policy(host, t, now);
	}
}

/* Count who is gated where, see to the devices' locks, and tell the core about every share that differs. */
static void tell_core(struct ptg_host *host, uint64_t now)
{
	uint32_t gated = 0, used = 0, ours = 0, foreign = 0;
	for (int i = 0; i < host->ndevices; i++)
		host->device[i].gated = 0;
	for (struct tenant *t = host->tenants; t; t = t->next) {
		used += t->used;
		gated += tenant_gated(t);
		for (unsigned i = 0; t->used && i < t->policy.ndev; i++)
			if (t->account[i].device >= 0 && t->account[i].share.gated)
				host->device[t->account[i].device].gated++;
	}
	locks_step(host, now);
	for (int i = 0; i < host->ndevices; i++) {
		ours += host->device[i].state == DEVICE_OURS;
		foreign += host->device[i].state == DEVICE_FOREIGN;
	}
	for (struct tenant *t = host->tenants; t; t = t->next)
		tenant_shares(host, t, now);
	host->stats.tenants = used;
	host->stats.gated = gated;
	host->stats.devices = ours;
	host->stats.foreign = foreign;
	host->idle_since = gated ? 0 : host->idle_since ? host->idle_since : now;
	host->changed = false;
}

static void look_around(struct ptg_host *host, uint64_t now)
{
	uint32_t kick = atomic_load(&host->kick);
	if (kick != host->heard)
		watch_read(host, now);
	host->heard = kick;
	if (host->scan_at <= now)
		watch_scan(host, now);
	look_at_tenants(host, now);
	bool retry = host->changed;
	for (int i = 0; i < host->ndevices; i++)
		retry |= host->device[i].retry_at <= now;
	if (retry)
		tell_core(host, now);
}

/* ---- a round ---------------------------------------------------------------------------------------------------------------- */

/* The claims, then the clock. What was not read is what the core knows already. */
static uint64_t claim_all(struct ptg_host *host, uint64_t now)
{
	host->active = false;
	for (struct tenant *t = host->tenants; t; t = t->next)
		t->claimed = t->id < 0 ? 0 : claims_read(host, t, now);
	now = host_now();
	for (struct tenant *t = host->tenants; t; t = t->next)
		for (unsigned i = 0; t->id >= 0 && i < t->policy.ndev; i++) {
			struct account *a = &t->account[i];
			if (!a->served)
				continue;
			if (t->claimed >> i & 1)
				arb_claim(host->arb, now, t->id, host->device[a->device].index, &a->claim);
			host->active |= a->claim.wants || a->claim.busy;
		}
	return now;
}

static struct tenant *tenant_of(struct ptg_host *host, int id)
{
	struct tenant *t = host->tenants;
	while (t && t->id != id)
		t = t->next;
	return t;
}

/* A program of long kernels is late in every turn: a line now and then. */
static void log_undrained(struct ptg_host *host, struct tenant *t, const struct arb_event *event)
{
	host->stats.undrained++;
	t->complaints++;
	if (t->complained_at && event->at - t->complained_at < TELL_EVERY)
		return;
	host_log(host,
	         "%s: a closed turn was not drained within %.1f ms; others go on beside it (%u of its turns so far)",
	         t->name, (double)event->amount / 1e6, t->complaints);
	t->complained_at = event->at;
}

static void log_events(struct ptg_host *host)
{
	struct arb_event event;
	while (arb_event(host->arb, &event)) {
		struct tenant *t = tenant_of(host, event.tenant);
		if (t && event.kind == ARB_EVENT_UNDRAINED)
			log_undrained(host, t, &event);
		else if (t && event.kind == ARB_EVENT_ABSURD)
			host_log(host, "%s: its ledger says what cannot be; for a while nothing of it is believed",
			         t->name);
		else if (t)
			host_log(host, "%s: used %.1f ms of a device more than it claimed; it repays them", t->name,
			         (double)event.amount / 1e6);
	}
}

/* First what closes and who is watched from now on, then what opens: else one could launch before another is told. */
static bool publish_all(struct ptg_host *host, uint64_t now)
{
	bool again = false, beat = now - host->beat_at >= BEAT_EVERY / 2;
	for (int opening = 0; opening < 2; opening++)
		for (struct tenant *t = host->tenants; t; t = t->next) {
			if (!t->turns)
				continue;
			again |= turns_publish(host, t, now, beat, opening);
			if (!t->turns)
				tenant_look_soon(t, now);
		}
	if (beat)
		host->beat_at = now;
	return again;
}

/* When to go round again although nobody rings. */
static uint64_t due(const struct ptg_host *host, uint64_t now, uint64_t until)
{
	until = earlier(until, host->scan_at);
	if (host->active)
		until = earlier(until, host->beat_at + BEAT_EVERY);
	if (host->idle_since && host->idle_ns != PTG_HOST_FOREVER)
		until = earlier(until, host->idle_since + host->idle_ns);
	for (int i = 0; i < host->ndevices; i++)
		until = earlier(until, host->device[i].retry_at);
	for (const struct tenant *t = host->tenants; t; t = t->next) {
		until = earlier(until, t->look_at);
		if (t->mute_until > now && t->used)
			until = earlier(until, t->mute_until);
		for (unsigned i = 0; i < t->policy.ndev; i++)
			if (t->account[i].served)
				until = earlier(until, claims_due(t, &t->account[i]));
	}
	return until;
}

/* Nobody was gated for long enough: go, unless somebody comes this moment. Who starts a program looks for a host under the
 * registry's lock, which we hold while we let the root go. */
static bool leaves(struct ptg_host *host, uint64_t now)
{
	if (!host->idle_since || host->idle_ns == PTG_HOST_FOREVER || now - host->idle_since < host->idle_ns)
		return false;
	struct stat st;
	if (fstat(host->root_fd, &st) || st.st_nlink == 0) {
		host->root_gone = true; /* we hold it open, so its end is no event */
		return true;
	}
	int registry = locks_registry(host);
	if (registry >= 0) {
		watch_scan(host, now);
		for (struct tenant *t = host->tenants; t; t = t->next)
			tenant_look(host, t, now);
		tell_core(host, now);
		if (host->idle_since)
			locks_close(host);
		close(registry);
	}
	if (host->serving_fd < 0)
		return true;
	if (host->idle_since)
		host->idle_since = now; /* somebody holds the registry: asked again after as long a time */
	return false;
}

static bool go_round(struct ptg_host *host, uint64_t *now_is, uint64_t *until)
{
	uint64_t now = host_now();
	look_around(host, now);
	now = *now_is = claim_all(host, now);
	*until = arb_decide(host->arb, now);
	log_events(host);
	host->stats.rounds++;
	bool again = publish_all(host, now);
	stats_tell(host);
	return again;
}

/* ---- running -------------------------------------------------------------------------------------------------------------- */

void ptg_host_adopt(struct ptg_host *host)
{
	uint64_t now, until;
	watch_scan(host, host_now());
	look_around(host, host_now());
	while (go_round(host, &now, &until))
		;
	host->adopted = true;
}

/* Ask for this thread to be woken in time and to go before others that compute: a quantum should not end late, and tenants
 * may keep every processor busy. Where the kernel does not know how (before 6.12), all stays as it is. */
static void be_prompt(void)
{
	struct { /* struct sched_attr, which older headers lack */
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t slice, deadline, period;
	} wish = {.size = sizeof wish, .nice = getpriority(PRIO_PROCESS, 0), .slice = SLICE_NS};
	prctl(PR_SET_TIMERSLACK, 1UL);
	if (sched_getscheduler(0) == SCHED_OTHER) /* else somebody chose it */
		syscall(SYS_sched_setattr, 0, &wish, 0);
}

int32_t ptg_host_run(struct ptg_host *host)
{
	be_prompt();
	if (!host->adopted)
		ptg_host_adopt(host);
	host_log(host, "serving %s", host->root);
	int32_t result = PTG_HOST_STOPPED;
	while (!atomic_load(&host->stop)) {
		uint64_t now, until;
		uint32_t kick = atomic_load(&host->kick);
		bool again = go_round(host, &now, &until);
		if (leaves(host, now) || host->root_gone) {
			result = host->root_gone ? PTG_HOST_ROOT_GONE : PTG_HOST_IDLE;
			break;
		}
		if (!again) {
			host->stats.sleeps++;
			wait_sleep(host, kick, now, due(host, now, until));
		}
	}
	for (struct tenant *t = host->tenants; t; t = t->next)
		if (t->turns)
			turns_reset(t, 0);
	host_log(host, result == PTG_HOST_STOPPED ? "stopped"
	               : result == PTG_HOST_IDLE  ? "idle: gone"
	                                          : "the root is gone");
	return result;
}

static void *run_on_thread(void *argument)
{
	ptg_host_run(argument);
	return NULL;
}

int32_t ptg_host_start(struct ptg_host *host)
{
	sigset_t all, before;
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* the guard's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&host->thread, NULL, run_on_thread, host);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	host->has_thread = error == 0;
	return -error;
}

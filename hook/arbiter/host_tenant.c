/* host_tenant.c: one hand-over: opens its files, follows its policy, sees whether anybody uses it.
 *
 * Called by host.c and host_watch.c when something in the directory changed, when its bell was rung, and when the root is
 * listed. Ledger and policy are mapped for reading, turns for writing.
 * What can go wrong: a file that is not there yet (looked for again when something happens), one of another layout or no
 * plain file (a line in the log; the tenant is not served and lives by its private bucket), one that is replaced (the new
 * one counts), a policy with absurd values or a wrong checksum (the last good copy counts). */
#include "host_local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "partage/crc32c.h"

#define LOOK_FIRST   HOST_MS /* after something happened; locks go a moment after the file that held them */
#define LOOK_LAST    (1024 * HOST_MS)
#define POLICY_EVERY (100 * HOST_MS) /* a policy that was changed without a ring is seen at a wake-up after this */

struct tenant *tenant_new(struct ptg_host *host, const char *name)
{
	struct tenant *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	snprintf(t->name, sizeof t->name, "%s", name);
	t->dir = t->policy_fd = t->ledger_fd = t->watch = t->id = -1;
	t->look_at = 0;
	for (unsigned i = 0; i < PTG_DEVICES; i++)
		t->account[i].device = -1;
	t->next = host->tenants;
	host->tenants = t;
	return t;
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Whether `name` in the directory is still the file that `id` says; sets what is there now. */
static bool is_there(int dir, const char *name, struct file_id *now)
{
	struct stat st;
	if (dir < 0 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return false;
	*now = (struct file_id){st.st_dev, st.st_ino};
	return true;
}

static bool same_file(struct file_id a, struct file_id b)
{
	return a.dev == b.dev && a.ino == b.ino;
}

static int open_in(int dir, const char *name, int flags)
{
	struct stat st;
	int fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode)))
		close_fd(&fd);
	return fd;
}

/* Say once per set of files what is wrong with them. */
static void complain(struct ptg_host *host, struct tenant *t, const char *what)
{
	if (!t->complained)
		host_log(host, "%s: %s; it gets no turns and lives by its private bucket", t->name, what);
	t->complained = true;
}

/* 1 good, 0 not whole (yet), -1 foreign. A maker stores the magic last. */
static int is_known(int fd, uint64_t magic, uint32_t layout, uint32_t size)
{
	struct {
		uint64_t magic;
		uint32_t layout, size;
	} head = {0};
	struct stat st;
	if (pread(fd, &head, sizeof head, 0) != sizeof head || head.magic == 0)
		return 0;
	if (head.magic != magic || head.layout != layout || head.size != size || fstat(fd, &st))
		return -1;
	return (uint64_t)st.st_size >= size;
}

static void drop_ledger(struct ptg_host *host, struct tenant *t)
{
	if (t->ledger) {
		wait_remove(host, t);
		munmap((void *)t->ledger, sizeof *t->ledger);
	}
	t->ledger = NULL;
	close_fd(&t->ledger_fd);
	for (unsigned i = 0; i < PTG_DEVICES; i++) {
		free(t->account[i].ghosts);
		t->account[i].ghosts = NULL;
	}
}

static void take_ledger(struct ptg_host *host, struct tenant *t)
{
	struct file_id now;
	bool there = is_there(t->dir, "ledger", &now);
	if (t->ledger && there && same_file(now, t->ledger_id))
		return;
	drop_ledger(host, t);
	if (!there || (t->ledger_fd = open_in(t->dir, "ledger", O_RDONLY)) < 0)
		return;
	int known = is_known(t->ledger_fd, PTG_LEDGER_MAGIC, PTG_LEDGER_LAYOUT, sizeof(struct ptg_ledger));
	void *map = MAP_FAILED;
	if (known > 0)
		map = mmap(NULL, sizeof *t->ledger, PROT_READ, MAP_SHARED, t->ledger_fd, 0);
	if (map == MAP_FAILED) {
		if (known)
			complain(host, t, "its ledger is not of this arbiter's layout");
		close_fd(&t->ledger_fd);
		return;
	}
	t->ledger = map;
	t->ledger_id = now;
	t->complained = false;
	claims_bell(
	        t); /* now: what the bell of the ledger before it said may be what this one says after its first ring */
	t->rings_now = true;
	wait_add(host, t);
}

static void drop_turns(struct tenant *t)
{
	if (t->turns)
		munmap(t->turns, sizeof *t->turns);
	t->turns = NULL;
}

static void take_turns(struct ptg_host *host, struct tenant *t)
{
	struct file_id now;
	bool there = is_there(t->dir, "turns", &now);
	if (t->turns && there && same_file(now, t->turns_id))
		return;
	drop_turns(t);
	/* First for reading: closing a file that was open for writing is an event, which brings us here again. */
	int fd = there ? open_in(t->dir, "turns", O_RDONLY) : -1;
	if (fd < 0)
		return;
	int known = is_known(fd, PTG_TURNS_MAGIC, PTG_TURNS_LAYOUT, sizeof(struct ptg_turns));
	close_fd(&fd);
	void *map = MAP_FAILED;
	if (known > 0 && (fd = open_in(t->dir, "turns", O_RDWR)) >= 0)
		map = mmap(NULL, sizeof(struct ptg_turns), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close_fd(&fd);
	if (map == MAP_FAILED) {
		if (known)
			complain(host, t, "its turns file is not of this arbiter's layout");
		return;
	}
	t->turns = map;
	t->turns_id = now;
	t->complained = false;
	if (!turns_reset(t, getpid()))
		drop_turns(t);
}

static void drop_policy(struct tenant *t)
{
	if (t->policy_at_hand)
		munmap((void *)t->policy_at_hand, sizeof *t->policy_at_hand);
	t->policy_at_hand = NULL;
	close_fd(&t->policy_fd);
}

static void take_policy(struct tenant *t)
{
	struct file_id now;
	bool there = is_there(t->dir, "policy", &now);
	if (t->policy_fd >= 0 && there && same_file(now, t->policy_id))
		return;
	drop_policy(t);
	if (!there || (t->policy_fd = open_in(t->dir, "policy", O_RDONLY)) < 0)
		return;
	void *map = mmap(NULL, sizeof *t->policy_at_hand, PROT_READ, MAP_SHARED, t->policy_fd, 0);
	t->policy_at_hand = map == MAP_FAILED ? NULL : map;
	t->policy_id = now;
	t->policy_seq = 1; /* none that counts: odd */
	t->rung = true;
}

/* ---- use ---------------------------------------------------------------------------------------------------------------- */

static bool is_locked(int fd, off_t from, off_t length)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void tenant_look_soon(struct tenant *t, uint64_t now)
{
	t->look_after = 0;
	t->look_at = now + LOOK_FIRST;
}

/* Leave the core and close its turns; the files stay open, since somebody may come back. */
static void withdraw(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	if (t->id < 0)
		return;
	arb_tenant_gone(host->arb, now, t->id);
	t->id = -1;
	for (unsigned i = 0; i < PTG_DEVICES; i++) {
		t->account[i].served = false;
		t->account[i].shown = (struct arb_turn){0};
	}
	if (t->turns && !turns_reset(t, getpid()))
		drop_turns(t);
	host->changed = true;
}

static void enter(struct ptg_host *host, struct tenant *t)
{
	if (t->id >= 0)
		return;
	t->id = arb_tenant(host->arb);
	if (t->id < 0) {
		complain(host, t, "the arbiter has as many tenants as it can hold");
		return;
	}
	host->stats.met++;
	host->changed = true;
}

void tenant_look(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	t->look_after = t->look_after ? 4 * t->look_after : LOOK_FIRST;
	/* In use and without turns: somebody holds a lease on them, which the kernel ends after a while, without a word. */
	bool misses = t->used && !t->turns;
	t->look_after = t->look_after > LOOK_LAST && misses ? LOOK_LAST : t->look_after;
	t->look_at = t->look_after > LOOK_LAST ? ARB_NEVER : now + t->look_after;
	struct ptg_turns *turns = t->turns;
	take_ledger(host, t);
	take_turns(host, t);
	take_policy(t);
	if (t->turns != turns)
		withdraw(host, t, now);
	t->rung = true;
	tenant_policy(host, t, now);
	bool used = t->ledger && (is_locked(t->ledger_fd, PTG_LOCK_WATCH, 1) || is_locked(t->ledger_fd, 0, PTG_SLOTS));
	if (used != t->used) {
		host->changed = true;
		host_log(host, used ? "%s: in use" : "%s: not in use any more", t->name);
	}
	t->used = used;
	if (used && t->turns && t->policy.magic)
		enter(host, t);
	else
		withdraw(host, t, now);
}

void tenant_free(struct ptg_host *host, struct tenant *t)
{
	struct tenant **at = &host->tenants;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	if (t->id >= 0)
		arb_tenant_gone(host->arb, host_now(), t->id);
	if (t->turns)
		turns_reset(t, 0);
	drop_turns(t);
	drop_ledger(host, t);
	drop_policy(t);
	close_fd(&t->dir);
	watch_remove(host, t->watch);
	free(t);
	host->changed = true;
}

/* ---- policy ---------------------------------------------------------------------------------------------------------- */

static bool is_sane_device(const struct ptg_policy *p, unsigned i)
{
	const struct ptg_policy_device *d = &p->device[i];
	if (!d->uuid[0] || !memchr(d->uuid, '\0', sizeof d->uuid) || d->turn >= PTG_DEVICES)
		return false;
	for (unsigned other = 0; other < i; other++)
		if (p->device[other].turn == d->turn || !strcmp(p->device[other].uuid, d->uuid))
			return false;
	return d->cores <= 1000 && d->ceiling >= 1 && d->ceiling <= 1000 && d->weight >= 1 && d->weight <= 10000;
}

static bool is_sane(const struct ptg_policy *p)
{
	if (p->magic != PTG_POLICY_MAGIC || p->layout != PTG_POLICY_LAYOUT || p->size != sizeof *p ||
	    p->crc32c != ptg_policy_crc(p))
		return false;
	if (p->ndev > PTG_DEVICES || p->share_class > PTG_CLASS_BEST_EFFORT || p->priority > 2)
		return false;
	for (unsigned i = 0; i < p->ndev; i++)
		if (!is_sane_device(p, i))
			return false;
	return true;
}

/* Whether the devices are others, or elsewhere in the turns file. */
static bool is_other_grant(const struct ptg_policy *a, const struct ptg_policy *b)
{
	if (a->ndev != b->ndev)
		return true;
	for (unsigned i = 0; i < a->ndev; i++)
		if (a->device[i].turn != b->device[i].turn || strcmp(a->device[i].uuid, b->device[i].uuid) != 0)
			return true;
	return false;
}

/* Take over a good copy: what each account's share is from now on. */
static void use_policy(struct ptg_host *host, struct tenant *t, const struct ptg_policy *p, uint64_t now)
{
	bool other = !t->policy.magic || is_other_grant(&t->policy, p);
	if (other)
		withdraw(host, t, now);
	t->policy = *p;
	for (unsigned i = 0; i < PTG_DEVICES; i++) {
		const struct ptg_policy_device *d = &p->device[i];
		struct account *a = &t->account[i];
		a->device = i < p->ndev ? locks_device(host, d->uuid) : -1;
		if (a->device < 0)
			continue;
		a->at = d->turn;
		a->audit = d->audit_ns;
		if (other || a->audited > a->audit)
			a->audited = a->audit; /* charged by whoever was arbiter then */
		a->share =
		        (struct arb_share){d->cores, d->ceiling, d->weight, p->share_class, p->priority, d->gated != 0};
	}
	host->changed = true;
	if (t->id < 0)
		tenant_look_soon(t, now);
}

struct sequence {
	const struct ptg_policy *policy;
	uint32_t seq;
};

HOST_GUARDED static void read_sequence(void *argument)
{
	struct sequence *sequence = argument;
	sequence->seq = __atomic_load_n(&sequence->policy->seq, __ATOMIC_ACQUIRE);
}

/* Rung for anything, nearly always it has not. */
static bool has_moved(const struct tenant *t)
{
	struct sequence sequence = {t->policy_at_hand, 0};
	return !t->policy_at_hand || (guard_run(read_sequence, &sequence) && sequence.seq != t->policy_seq);
}

void tenant_policy(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	struct ptg_policy p;
	if (t->policy_fd < 0 || (!t->rung && t->policy_at && now - t->policy_at < POLICY_EVERY))
		return;
	t->rung = false;
	t->policy_at = now;
	if (!has_moved(t))
		return;
	bool read = pread(t->policy_fd, &p, sizeof p, 0) == sizeof p;
	/* Whole where the sequence neither was odd nor moved while it was copied. */
	uint32_t after;
	bool settled = read && !(p.seq & 1) &&
	               pread(t->policy_fd, &after, sizeof after, offsetof(struct ptg_policy, seq)) == sizeof after &&
	               after == p.seq;
	if (settled && is_sane(&p)) {
		t->policy_seq = p.seq;
		use_policy(host, t, &p, now);
		return;
	}
	/* In the making: its writer rings when it is done. One that was killed half-way leaves the last good copy. */
	if (settled && p.magic) {
		t->policy_seq = p.seq;
		host_log(host, "%s: its policy has absurd values or a wrong checksum: %s", t->name,
		         t->policy.magic ? "the last good one counts" : "it gets no turns");
	}
	if (t->look_at == ARB_NEVER)
		tenant_look_soon(t, now);
}

bool tenant_gated(const struct tenant *t)
{
	for (unsigned i = 0; i < t->policy.ndev; i++)
		if (t->account[i].share.gated)
			return t->used;
	return false;
}

static bool same_share(const struct arb_share *a, const struct arb_share *b)
{
	return a->cores == b->cores && a->ceiling == b->ceiling && a->weight == b->weight &&
	       a->share_class == b->share_class && a->priority == b->priority && a->gated == b->gated;
}

void tenant_shares(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	for (unsigned i = 0; i < PTG_DEVICES; i++) {
		struct account *a = &t->account[i];
		const struct device *device = a->device >= 0 ? &host->device[a->device] : NULL;
		bool ours = t->id >= 0 && t->turns && device && device->state == DEVICE_OURS;
		if (!ours && a->served && device)
			arb_share(host->arb, now, t->id, device->index, NULL);
		else if (ours && (!a->served || !same_share(&a->share, &a->told)))
			arb_share(host->arb, now, t->id, device->index, &a->share);
		if (ours && a->audit != a->audited) {
			arb_audit(host->arb, now, t->id, device->index, a->audit - a->audited);
			a->audited = a->audit;
		}
		a->stale |= ours && (!a->served || a->share.gated != a->told.gated);
		a->served = ours;
		a->told = a->share;
	}
}

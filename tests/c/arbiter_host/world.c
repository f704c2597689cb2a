/* world.c: see world.h. */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "partage/crc32c.h"

#define HANG_S 60 /* a bound on hangs, not on speed */

uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct world world_make(const char *name)
{
	struct world w;
	const char *scratch = getenv("TEST_SCRATCH");
	CHECK(scratch, "tests/c/run sets TEST_SCRATCH");
	snprintf(w.root, sizeof w.root, "%s/%s", scratch, name);
	snprintf(w.locks, sizeof w.locks, "%s/%s.locks", scratch, name);
	snprintf(w.log, sizeof w.log, "%s/%s.log", scratch, name);
	CHECK(!mkdir(w.root, 0700) && !mkdir(w.locks, 0700), "%s", strerror(errno));
	return w;
}

struct ptg_host *world_open(const struct world *w, const char *root, uint64_t idle_ns, uint32_t flags)
{
	char why[512] = "";
	int log = open(w->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	struct ptg_host_options options = {root, w->locks, idle_ns, log, flags};
	struct ptg_host *host = ptg_host_open(&options, why, sizeof why);
	CHECK(host, "%s", why);
	return host;
}

struct ptg_host *world_host(const struct world *w, uint64_t idle_ns, uint32_t flags)
{
	struct ptg_host *host = world_open(w, w->root, idle_ns, flags);
	CHECK(!ptg_host_start(host), "no thread");
	return host;
}

pid_t world_arbiter(const struct world *w, const char *idle, int *ready)
{
	int ends[2];
	char number[16], program[512];
	snprintf(program, sizeof program, "%s/lib/partage-arbiter", getenv("TEST_BUILD"));
	CHECK(!pipe2(ends, 0), "%s", strerror(errno));
	pid_t pid = fork();
	CHECK(pid >= 0, "%s", strerror(errno));
	if (pid == 0) {
		close(ends[0]);
		snprintf(number, sizeof number, "%d", ends[1]);
		execl(program, program, "--root", w->root, "--lock-dir", w->locks, "--log", w->log, "--ready-fd",
		      number, "--idle-exit", idle, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	*ready = ends[0];
	return pid;
}

void world_ready(int fd, const char *line)
{
	char text[1024];
	ssize_t n = read(fd, text, sizeof text - 1);
	CHECK(n > 0, "nothing was said");
	text[n] = '\0';
	CHECK(!strncmp(text, line, strlen(line)), "said: %s", text);
	close(fd);
}

/* ---- files --------------------------------------------------------------------------------------------------------------- */

void file_write(const char *dir, const char *name, const void *bytes, size_t size)
{
	char path[768];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	unlink(path);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size, "%s: %s", path, strerror(errno));
	close(fd);
}

char *file_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *text = calloc(1, 65536);
	if (fd >= 0 && read(fd, text, 65535) < 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	return text;
}

static bool file_says(const char *path, const char *words)
{
	char *text = file_read(path);
	bool there = strstr(text, words) != NULL;
	free(text);
	return there;
}

bool log_waits(const struct world *w, const char *words)
{
	char directory[sizeof w->log], events[4096];
	snprintf(directory, sizeof directory, "%s", w->log);
	*strrchr(directory, '/') = '\0';
	struct pollfd news = {inotify_init1(IN_CLOEXEC), POLLIN, 0};
	/* The directory: the file may not be there yet. */
	CHECK(news.fd >= 0 && inotify_add_watch(news.fd, directory, IN_MODIFY | IN_CREATE | IN_MOVED_TO) >= 0,
	      "inotify: %s", strerror(errno));
	bool there = file_says(w->log, words);
	while (!there && poll(&news, 1, HANG_S * 1000) == 1 && read(news.fd, events, sizeof events) > 0)
		there = file_says(w->log, words);
	close(news.fd);
	return there;
}

static void *map(const char *dir, const char *name, size_t size, int protection, int *keep)
{
	char path[768];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, size, protection, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED, "%s: %s", path, strerror(errno));
	if (keep)
		*keep = fd;
	else
		close(fd);
	return at;
}

static void fill_device(struct ptg_policy_device *d, const char *uuid, unsigned turn, struct share share)
{
	if (d->uuid != uuid)
		snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
	d->memory = d->physical = 1 << 30;
	d->cores = share.cores;
	d->ceiling = share.ceiling;
	d->weight = share.weight;
	d->gated = share.gated;
	d->turn = turn;
}

static bool lock_byte(int fd, int byte, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

struct hand hand_open(const struct world *w, const char *name)
{
	struct hand h = {.watch_fd = -1};
	snprintf(h.path, sizeof h.path, "%s/%s", w->root, name);
	h.turns = map(h.path, "turns", sizeof *h.turns, PROT_READ, NULL);
	h.ledger = map(h.path, "ledger", sizeof *h.ledger, PROT_READ | PROT_WRITE, &h.ledger_fd);
	h.policy = map(h.path, "policy", sizeof *h.policy, PROT_READ | PROT_WRITE, NULL);
	return h;
}

static void make_files(const char *path, uint32_t ndev)
{
	CHECK(!mkdir(path, 0700), "%s: %s", path, strerror(errno));
	struct ptg_turns turns = {PTG_TURNS_MAGIC, PTG_TURNS_LAYOUT, sizeof turns, ndev, 0, {0}, {{0}}};
	file_write(path, "turns", &turns, sizeof turns);
	struct ptg_ledger *image = calloc(1, sizeof *image);
	image->magic = PTG_LEDGER_MAGIC;
	image->layout = PTG_LEDGER_LAYOUT;
	image->size = sizeof *image;
	image->ndev = ndev;
	image->nslots = PTG_SLOTS;
	file_write(path, "ledger", image, sizeof *image);
	free(image);
	struct ptg_policy empty = {0};
	file_write(path, "policy", &empty, sizeof empty);
}

struct hand hand_make(const struct world *w, const char *name, struct share share, const char *card2)
{
	char path[768];
	snprintf(path, sizeof path, "%s/%s", w->root, name);
	make_files(path, card2 ? 2 : 1);
	struct hand h = hand_open(w, name);
	snprintf(path, sizeof path, "%s/ledger", h.path);
	h.watch_fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(lock_byte(h.watch_fd, PTG_LOCK_WATCH, F_WRLCK), "%s", strerror(errno));
	h.policy->ndev = card2 ? 2 : 1;
	fill_device(&h.policy->device[0], CARD, 0, share);
	if (card2)
		fill_device(&h.policy->device[1], card2, 1, share);
	hand_share(&h, share);
	return h;
}

void hand_share(struct hand *h, struct share share)
{
	struct ptg_policy *p = h->policy;
	uint32_t odd = p->seq | 1;
	__atomic_store_n(&p->seq, odd, __ATOMIC_SEQ_CST);
	p->layout = PTG_POLICY_LAYOUT;
	p->size = sizeof *p;
	p->generation++;
	p->state = PTG_STATE_OPEN;
	p->share_class = share.share_class;
	p->priority = 1;
	p->enforcement = PTG_ENFORCE_SHIM;
	p->gated = share.gated ? (1u << p->ndev) - 1 : 0;
	for (unsigned i = 0; i < p->ndev; i++)
		fill_device(&p->device[i], p->device[i].uuid, p->device[i].turn, share);
	p->crc32c = ptg_policy_crc(p);
	p->magic = PTG_POLICY_MAGIC;
	__atomic_store_n(&p->seq, odd + 1, __ATOMIC_SEQ_CST);
	ring(h);
}

void hand_leave(struct hand *h)
{
	munmap(h->policy, sizeof *h->policy);
	munmap(h->ledger, sizeof *h->ledger);
	munmap((void *)h->turns, sizeof *h->turns);
	close(h->ledger_fd);
	if (h->watch_fd >= 0)
		close(h->watch_fd);
	h->watch_fd = -1;
}

void hand_remove(struct hand *h)
{
	const char *names[] = {"policy", "ledger", "turns"};
	char path[768];
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/%s", h->path, names[i]);
		unlink(path);
	}
	CHECK(!rmdir(h->path), "%s: %s", h->path, strerror(errno));
}

/* ---- a tenant -------------------------------------------------------------------------------------------------------------- */

void ring(struct hand *h)
{
	__atomic_fetch_add(&h->ledger->turn_bell, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &h->ledger->turn_bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool take_slot(struct hand *h, unsigned slot)
{
	if (!lock_byte(h->ledger_fd, (int)slot, F_WRLCK))
		return false;
	if (h->ledger->high <= slot)
		h->ledger->high = slot + 1;
	h->ledger->slot[slot].state = PTG_SLOT_USED;
	return true;
}

void drop_slot(struct hand *h, unsigned slot)
{
	lock_byte(h->ledger_fd, (int)slot, F_UNLCK);
}

void want(struct hand *h, unsigned device, unsigned slot)
{
	struct ptg_slot_turn *line = &h->ledger->turn[device][slot];
	__atomic_store_n(&line->want_ns, now_ns(), __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want, 1, __ATOMIC_SEQ_CST);
	ring(h);
}

void begin(struct hand *h, unsigned device, unsigned slot)
{
	struct ptg_slot_turn *line = &h->ledger->turn[device][slot];
	__atomic_store_n(&line->busy_ns, now_ns(), __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want_ns, 0, __ATOMIC_SEQ_CST);
	if (h->turns->turn[device].flags & PTG_TURN_WATCHED)
		ring(h);
}

void finish(struct hand *h, unsigned device, unsigned slot)
{
	struct ptg_slot_turn *line = &h->ledger->turn[device][slot];
	uint64_t now = now_ns();
	__atomic_store_n(&line->flight_ns, line->flight_ns + now - line->busy_ns, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->idle_ns, now, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->busy_ns, 0, __ATOMIC_SEQ_CST);
	if (h->turns->turn[device].flags & PTG_TURN_WATCHED || !(word_of(h, device) & 1))
		ring(h);
}

uint32_t word_of(const struct hand *h, unsigned device)
{
	return __atomic_load_n(&h->turns->turn[device].word, __ATOMIC_SEQ_CST);
}

/* Closing wakes nobody, so who waits for it looks every millisecond. A turn that nobody uses is taken back soon: a word
 * that has gone on has been odd. */
static void await(const struct hand *h, unsigned device, uint32_t parity)
{
	const uint32_t first = word_of(h, device);
	for (uint64_t until = now_ns() + HANG_S * UINT64_C(1000000000);;) {
		uint32_t word = word_of(h, device);
		if ((word & 1) == parity || word - first > 1)
			return;
		CHECK(now_ns() < until, "%s: the word is %u for %d s", h->path, word, HANG_S);
		struct timespec most = {0, parity ? 100000000 : 1000000};
		syscall(SYS_futex, &h->turns->turn[device].word, FUTEX_WAIT, word, &most, NULL, 0);
	}
}

void await_open(const struct hand *h, unsigned device)
{
	await(h, device, 1);
}

void await_closed(const struct hand *h, unsigned device)
{
	await(h, device, 0);
}

void take_turn(struct hand *h, unsigned device, unsigned slot)
{
	struct ptg_slot_turn *line = &h->ledger->turn[device][slot];
	for (;;) {
		/* In flight before the word is looked at again: else the arbiter might close it in between. */
		__atomic_store_n(&line->busy_ns, now_ns(), __ATOMIC_SEQ_CST);
		if (word_of(h, device) & 1)
			break;
		__atomic_store_n(&line->busy_ns, 0, __ATOMIC_SEQ_CST);
		want(h, device, slot);
		await_open(h, device);
	}
	begin(h, device, slot);
	finish(h, device, slot);
}

void await_stat(struct ptg_host *host, bool (*holds)(const struct ptg_host_stats *), const char *what)
{
	struct ptg_host_stats stats;
	ptg_host_stats(host, &stats);
	while (!holds(&stats))
		CHECK(ptg_host_stats_await(host, &stats, HANG_S * UINT64_C(1000000000)), "%s: not within %d s", what,
		      HANG_S);
}

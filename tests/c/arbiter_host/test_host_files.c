/* test_host_files.c: what a tenant or a broken writer may do to the files of a hand-over, and that neighbours do not notice.
 *
 * Beside each spoilt hand-over a whole one goes on taking turns: the host neither ends nor hangs. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "world.h"

static struct world w;
static struct ptg_host *host;
static struct hand neighbour;

static void cut(const struct hand *h, const char *name, off_t size)
{
	char path[768];
	snprintf(path, sizeof path, "%s/%s", h->path, name);
	CHECK(!truncate(path, size), "%s: %s", path, strerror(errno));
}

static void neighbour_goes_on(void)
{
	for (int i = 0; i < 3; i++)
		take_turn(&neighbour, 0, 0);
}

/* The bell's page goes, comes back, and goes while the tenant has the turn. */
static void test_truncated_ledger(void)
{
	struct hand h = hand_make(&w, "cut", GATED30, NULL);
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	cut(&h, "ledger", 0);
	neighbour_goes_on();
	cut(&h, "ledger", 100);
	neighbour_goes_on();
	cut(&h, "ledger", sizeof *h.ledger); /* whole again, and empty: the claims as well as the bell */
	neighbour_goes_on();
	cut(&h, "ledger", 8192); /* the bell is there, the claims are not */
	ring(&h);
	neighbour_goes_on();
	cut(&h, "ledger", 0);
	hand_remove(&h);
	CHECK(log_waits(&w, "cut: gone"), "a hand-over with a cut ledger is forgotten");
}

/* Every byte a lie: times in the future and the past, more slots than there are, threads without number. */
static void test_scribbled_ledger(void)
{
	struct hand h = hand_make(&w, "scribbled", GATED30, NULL);
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	size_t from = offsetof(struct ptg_ledger, reclaimed);
	for (int byte = 0; byte < 256; byte += 51) {
		memset((char *)h.ledger + from, byte, sizeof *h.ledger - from);
		ring(&h);
		neighbour_goes_on();
	}
	CHECK(log_waits(&w, "scribbled: its ledger says what cannot be"), "no word about the ledger");
	hand_leave(&h);
	hand_remove(&h);
	neighbour_goes_on();
}

/* A ledger of another layout is not served; one of ours in its place is. */
static void test_foreign_then_replaced(void)
{
	struct hand h = hand_make(&w, "foreign", GATED30, NULL);
	struct ptg_ledger *image = calloc(1, sizeof *image);
	image->magic = PTG_LEDGER_MAGIC;
	image->layout = PTG_LEDGER_LAYOUT + 1;
	image->size = sizeof *image;
	file_write(h.path, "ledger", image, sizeof *image);
	CHECK(log_waits(&w, "foreign: its ledger is not of this arbiter's layout"), "no word about the ledger");
	image->layout = PTG_LEDGER_LAYOUT;
	file_write(h.path, "ledger", image, sizeof *image);
	free(image);
	hand_leave(&h);
	struct hand again = hand_open(&w, "foreign");
	take_slot(&again, 0);
	take_turn(&again, 0, 0);
	struct ptg_turns turns = {PTG_TURNS_MAGIC, PTG_TURNS_LAYOUT + 1, sizeof turns, 1, 0, {0}, {{0}}};
	file_write(again.path, "turns", &turns, sizeof turns);
	CHECK(log_waits(&w, "foreign: its turns file is not of this arbiter's layout"), "no word about the turns");
	neighbour_goes_on();
	turns.layout = PTG_TURNS_LAYOUT;
	file_write(again.path, "turns", &turns, sizeof turns);
	hand_leave(&again);
	struct hand last = hand_open(&w, "foreign");
	take_slot(&last, 0);
	take_turn(&last, 0, 0);
	hand_leave(&last);
	hand_remove(&last);
}

/* Whoever maps the turns file may write into it in `partage run`: words go on from ours. One that is cut kills nobody. */
static void test_spoilt_turns(void)
{
	struct hand h = hand_make(&w, "spoilt", GATED30, NULL);
	char path[768];
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	snprintf(path, sizeof path, "%s/turns", h.path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char junk[64];
	memset(junk, 0xff, sizeof junk);
	CHECK(pwrite(fd, junk, sizeof junk, 64) == sizeof junk, "%s", strerror(errno));
	want(&h, 0, 0);
	neighbour_goes_on();
	CHECK(!ftruncate(fd, 0), "%s", strerror(errno));
	close(fd);
	want(&h, 0, 0);
	neighbour_goes_on();
	CHECK(log_waits(&w, "spoilt: its turns file was cut"), "no word about the turns");
	hand_leave(&h);
	hand_remove(&h);
}

/* A policy with a wrong checksum leaves the last good one; one that was never good gives no turns; links lead nowhere. */
static void test_spoilt_policy(void)
{
	struct hand h = hand_make(&w, "policy", GATED30, NULL);
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	__atomic_fetch_add(&h.policy->seq, 2, __ATOMIC_SEQ_CST);
	h.policy->device[0].cores = 999; /* under the old checksum */
	ring(&h);
	CHECK(log_waits(&w, "policy: its policy has absurd values or a wrong checksum: the last good one counts"),
	      "no word");
	take_turn(&h, 0, 0);
	h.policy->seq |= 1; /* its writer was killed half-way */
	ring(&h);
	take_turn(&h, 0, 0);
	hand_share(&h, FREE);
	await_open(&h, 0);
	hand_leave(&h);
	hand_remove(&h);
}

static void test_links_lead_nowhere(void)
{
	char path[768], target[768];
	snprintf(path, sizeof path, "%s/linked", w.root);
	CHECK(!symlink(neighbour.path, path), "%s", strerror(errno));
	struct hand h = hand_make(&w, "inside", GATED30, NULL);
	snprintf(path, sizeof path, "%s/turns", h.path);
	snprintf(target, sizeof target, "%s/turns", neighbour.path);
	CHECK(!unlink(path) && !symlink(target, path), "%s", strerror(errno));
	neighbour_goes_on();
	CHECK(neighbour.turns->arbiter == getpid(), "somebody wrote through a link");
	hand_leave(&h);
	hand_remove(&h);
	char *log = file_read(w.log);
	CHECK(!strstr(log, "linked: in use"), "a link passed for a hand-over");
	free(log);
}

int main(void)
{
	w = world_make("files");
	host = world_host(&w, PTG_HOST_FOREVER, 0);
	neighbour = hand_make(&w, "neighbour", GATED30, NULL);
	take_slot(&neighbour, 0);
	neighbour_goes_on();
	test_truncated_ledger();
	test_scribbled_ledger();
	test_foreign_then_replaced();
	test_spoilt_turns();
	test_spoilt_policy();
	test_links_lead_nowhere();
	ptg_host_close(host);
	return 0;
}

/* test_host_locks.c: one arbiter a device and one host a root, and what stands in the lock directory's way.
 *
 * A second arbiter says who has the device, gives no turns there, and goes on as soon as the first one ends. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "world.h"

static bool waits_for_one(const struct ptg_host_stats *s)
{
	return s->foreign == 1;
}

static bool has_one(const struct ptg_host_stats *s)
{
	return s->devices == 1;
}

static bool has_two(const struct ptg_host_stats *s)
{
	return s->devices == 2;
}

static bool has_none(const struct ptg_host_stats *s)
{
	return s->devices == 0 && s->foreign == 0;
}

/* Two users: two roots, one lock directory. The first has the device; the second waits for it. */
struct users {
	struct world first, second;
	struct hand a, b;
	struct ptg_host *one, *two;
};

static struct users two_users(const char *first, const char *second, const char *card_of_second)
{
	struct users u = {.first = world_make(first), .second = world_make(second)};
	memcpy(u.second.locks, u.first.locks, sizeof u.second.locks);
	u.a = hand_make(&u.first, "a", GATED30, NULL);
	u.b = hand_make(&u.second, "b", GATED30, card_of_second);
	u.one = world_host(&u.first, PTG_HOST_FOREVER, 0);
	await_stat(u.one, has_one, "the first has the device");
	u.two = world_host(&u.second, PTG_HOST_FOREVER, 0);
	await_stat(u.two, waits_for_one, "the second waits for it");
	return u;
}

static void test_two_arbiters(void)
{
	struct users u = two_users("first", "second", CARD2);
	struct hand a = u.a, b = u.b;
	struct ptg_host *one = u.one, *two = u.two;
	await_stat(two, has_one, "the second has the other device");
	take_slot(&a, 0);
	take_slot(&b, 0);
	take_turn(&a, 0, 0);
	take_turn(&b, 1, 0);
	CHECK(b.turns->turn[0].word == 0 && b.turns->turn[0].heartbeat_ns == 0,
	      "word %u, heartbeat %llu where another arbitrates", b.turns->turn[0].word,
	      (unsigned long long)b.turns->turn[0].heartbeat_ns);
	char who[512];
	snprintf(who, sizeof who, "device " CARD ": arbitrated by pid %d uid %u start ", (int)getpid(),
	         (unsigned)geteuid());
	CHECK(log_waits(&u.second, who) && log_waits(&u.second, u.first.root), "the owner is not named");
	want(&b, 0, 0);
	ptg_host_close(one);
	await_open(&b, 0);
	await_stat(two, has_two, "the second has both");
	CHECK(log_waits(&u.second, "free now"), "no word about it");
	ptg_host_close(two);
}

/* Nobody is gated on a device any more: others may arbitrate it. */
static void test_let_go(void)
{
	struct users u = two_users("let", "go", NULL);
	hand_share(&u.a, FREE);
	await_stat(u.one, has_none, "the first lets go");
	await_stat(u.two, has_one, "the second has it");
	take_slot(&u.b, 0);
	take_turn(&u.b, 0, 0);
	ptg_host_close(u.one);
	ptg_host_close(u.two);
}

static void test_one_host_a_root(void)
{
	struct world w = world_make("root");
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	struct ptg_host_options options = {w.root, w.locks, PTG_HOST_FOREVER, -1, 0};
	char why[512], want_why[600];
	CHECK(!ptg_host_open(&options, why, sizeof why), "two hosts serve one root");
	snprintf(want_why, sizeof want_why, "served by pid %d uid %u", (int)getpid(), (unsigned)geteuid());
	CHECK(!strncmp(why, want_why, strlen(want_why)), "%s", why);
	int ready;
	pid_t pid = world_arbiter(&w, "10", &ready);
	int status;
	world_ready(ready, "served by pid");
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
	ptg_host_close(host);
	host = ptg_host_open(&options, why, sizeof why);
	CHECK(host, "%s", why);
	ptg_host_close(host);
	options.root = "/nonexistent";
	CHECK(!ptg_host_open(&options, why, sizeof why) && strstr(why, "/nonexistent: "), "%s", why);
	CHECK(!chmod(w.root, 0777), "%s", strerror(errno));
	options.root = w.root;
	CHECK(!ptg_host_open(&options, why, sizeof why) && strstr(why, "a directory of uid"), "%s", why);
}

static void lock_path(const struct world *w, char *path, size_t size)
{
	snprintf(path, size, "%s/partage-" CARD ".lock", w->locks);
}

/* What somebody may have put in the lock file's place; the victim stays as it was. */
static void test_planted(void)
{
	static const char *const kind[] = {"link", "hard link", "directory", "fifo"};
	for (int i = 0; i < 4; i++) {
		char name[32], path[768], victim[768];
		snprintf(name, sizeof name, "planted%d", i);
		struct world w = world_make(name);
		lock_path(&w, path, sizeof path);
		file_write(w.locks, "victim", "precious", 8);
		snprintf(victim, sizeof victim, "%s/victim", w.locks);
		int failed = i == 0   ? symlink(victim, path)
		             : i == 1 ? link(victim, path)
		             : i == 2 ? mkdir(path, 0700)
		                      : mkfifo(path, 0600);
		CHECK(!failed, "%s: %s", kind[i], strerror(errno));
		struct hand h = hand_make(&w, "h", GATED30, NULL);
		struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
		CHECK(log_waits(&w, "cannot be locked in"), "%s: no word", kind[i]);
		char *text = file_read(victim);
		CHECK(!strcmp(text, "precious"), "%s: the victim says '%s'", kind[i], text);
		free(text);
		CHECK(word_of(&h, 0) == 0, "%s: turns without the lock", kind[i]);
		/* As soon as the place is free and something changes, turns are given. */
		CHECK(!(i == 2 ? rmdir(path) : unlink(path)), "%s", strerror(errno));
		hand_share(&h, (struct share){200, 200, 200, PTG_CLASS_FIXED, true});
		take_slot(&h, 0);
		take_turn(&h, 0, 0);
		ptg_host_close(host);
	}
}

static void test_directory(void)
{
	struct world w = world_make("directory");
	struct hand h = hand_make(&w, "h", GATED30, NULL);
	CHECK(!chmod(w.locks, 0777), "%s", strerror(errno));
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	CHECK(log_waits(&w, "others may write to the directory and it is not sticky"), "no word");
	CHECK(!chmod(w.locks, 01777), "%s", strerror(errno));
	hand_share(&h, (struct share){200, 200, 200, PTG_CLASS_FIXED, true});
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	/* Somebody cleans up: the file is made again, so that the next one finds it. */
	char path[768];
	lock_path(&w, path, sizeof path);
	struct stat st;
	CHECK(!unlink(path), "%s", strerror(errno));
	for (uint64_t until = now_ns() + UINT64_C(60000000000);;) {
		if (!stat(path, &st) && (st.st_mode & 0777) == 0666)
			break;
		take_turn(&h, 0, 0);
		CHECK(now_ns() < until, "the lock file is not there again for all, mode %o", st.st_mode);
	}
	ptg_host_close(host);
}

int main(void)
{
	test_two_arbiters();
	test_let_go();
	test_one_host_a_root();
	test_planted();
	test_directory();
	return 0;
}

/* Files of a share that are damaged while programs use it: policy, ledger and turns. Nine of ten changes go to headers and
 * to slots in use; some cut the file short or lengthen it while it is mapped, some put a fifo, a directory or a link in
 * its place, or nothing. For each: a program that runs while it happens and one that starts afterwards end by themselves
 * (or by SIGBUS, where their own file was cut), nobody hangs or takes host memory without bound, whoever cannot write
 * the policy gets no more than it grants, and the neighbour on the same card notices nothing.
 * Arguments: how many (1000), the first seed (0). Each seed is one change and can be played again alone.
 */
#include <sys/resource.h>

#include "life.h"
#include "partage/turns.h"

#define LIMIT      (32 * MIB)
#define WATCHDOG_S 60 /* stands for "hangs" */
#define MOST_RSS   (512 * 1024) /* KiB of a tenant */

enum file { POLICY, LEDGER, TURNS, FILES };
enum change { WRITE, CUT, LENGTHEN, FIFO, DIRECTORY, LINK, REMOVE, CHANGES };

static const char *const file_name[FILES] = {"policy", "ledger", "turns"};
static const char *const change_name[CHANGES] = {"written",     "cut",    "lengthened", "a fifo",
                                                 "a directory", "a link", "gone"};
static const size_t file_size[FILES] = {sizeof(struct ptg_policy), sizeof(struct ptg_ledger), sizeof(struct ptg_turns)};

struct mutation {
	enum file file;
	enum change change;
	size_t offset, length; /* CUT, LENGTHEN: length is the file's */
	unsigned char bytes[64];
	bool sealed; /* the policy gets a checksum that fits */
};

/* ---- chance --------------------------------------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t draw(uint64_t below)
{
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % below;
}

struct range {
	size_t begin, end;
};

#define FIELD(type, field) {offsetof(type, field), offsetof(type, field) + sizeof(((type *)0)->field)}
#define LINES              128 /* bytes of a slot that hold its identity and its first device */

/* Where most changes go. */
static struct range hot(enum file file)
{
	static const struct range policy[] = {{0, 64},
	                                      {offsetof(struct ptg_policy, device),
	                                       offsetof(struct ptg_policy, device) + sizeof(struct ptg_policy_device)}};
	static const struct range ledger[] = {
	        {0, 64},
	        FIELD(struct ptg_ledger, doorbell),
	        {offsetof(struct ptg_ledger, reclaimed), offsetof(struct ptg_ledger, high) + 4},
	        {offsetof(struct ptg_ledger, uuid), offsetof(struct ptg_ledger, uuid) + PTG_UUID_SIZE},
	        {offsetof(struct ptg_ledger, device),
		 offsetof(struct ptg_ledger, device) + sizeof(struct ptg_ledger_device)},
	        {offsetof(struct ptg_ledger, slot), offsetof(struct ptg_ledger, slot) + LINES},
	        {offsetof(struct ptg_ledger, slot) + sizeof(struct ptg_slot),
		 offsetof(struct ptg_ledger, slot) + sizeof(struct ptg_slot) + LINES}};
	if (file == POLICY)
		return policy[draw(2)];
	return file == LEDGER ? ledger[draw(sizeof(ledger) / sizeof(*ledger))] : (struct range){0, 128};
}

static struct mutation draw_mutation(uint64_t seed)
{
	static const size_t lengths[] = {1, 1, 4, 8, 8, 64};
	struct mutation m = {.change = WRITE};
	state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
	uint64_t dice = draw(100);
	m.file = dice < 35 ? POLICY : dice < 90 ? LEDGER : TURNS;
	dice = draw(100);
	if (dice < 15)
		m.change = dice < 5    ? CUT
		           : dice < 7  ? LENGTHEN
		           : dice < 9  ? FIFO
		           : dice < 11 ? DIRECTORY
		           : dice < 13 ? LINK
		                       : REMOVE;
	struct range place = draw(10) < 9 ? hot(m.file) : (struct range){0, file_size[m.file]};
	m.offset = place.begin + draw(place.end - place.begin);
	m.length = lengths[draw(sizeof(lengths) / sizeof(*lengths))];
	if (m.length > place.end - m.offset)
		m.length = place.end - m.offset;
	if (m.change == CUT)
		m.length = draw(3) ? draw(file_size[m.file]) : 0;
	else if (m.change == LENGTHEN)
		m.length = file_size[m.file] + draw(1 << 30);
	unsigned char constant = (unsigned char[]){0, 0xff, 0x7f}[draw(3)];
	bool random = draw(4) == 0;
	for (size_t i = 0; i < sizeof(m.bytes); i++)
		m.bytes[i] = random ? (unsigned char)draw(256) : constant;
	m.sealed = m.file == POLICY && m.change == WRITE && draw(5) == 0;
	return m;
}

/* ---- the change ----------------------------------------------------------------------------------------------------------- */

static void seal(int fd)
{
	struct ptg_policy policy;
	CHECK(pread(fd, &policy, sizeof(policy), 0) == sizeof(policy), "read the policy");
	grant_seal(&policy);
	CHECK(pwrite(fd, &policy, sizeof(policy), 0) == sizeof(policy), "seal the policy");
}

static void change_inside(const char *path, const struct mutation *m)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s", path);
	if (m->change != WRITE)
		CHECK(ftruncate(fd, (off_t)m->length) == 0, "ftruncate");
	else
		CHECK(pwrite(fd, m->bytes, m->length, (off_t)m->offset) == (ssize_t)m->length, "write");
	if (m->sealed)
		seal(fd);
	close(fd);
}

static void apply(const char *share, const struct mutation *m)
{
	const char *path = grant_path(share, file_name[m->file]);
	if (m->change <= LENGTHEN) {
		change_inside(path, m);
		return;
	}
	CHECK(unlink(path) == 0, "unlink %s", path);
	if (m->change == FIFO)
		CHECK(mkfifo(path, 0600) == 0, "mkfifo");
	else if (m->change == DIRECTORY)
		CHECK(mkdir(path, 0700) == 0, "mkdir");
	else if (m->change == LINK)
		CHECK(symlink(draw(2) ? "/dev/zero" : file_name[m->file], path) == 0, "symlink");
}

static void make_share(const char *share)
{
	struct ptg_turns turns = {
	        .magic = PTG_TURNS_MAGIC, .layout = PTG_TURNS_LAYOUT, .size = sizeof(turns), .ndev = 1};
	grant(share, &(struct granted){0, LIMIT}, 1);
	int fd = open(grant_path(share, "turns"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, &turns, sizeof(turns)) == sizeof(turns), "turns");
	close(fd);
}

static void remove_share(const char *share)
{
	for (int i = 0; i < FILES; i++)
		if (unlink(grant_path(share, file_name[i])) != 0)
			rmdir(grant_path(share, file_name[i]));
	CHECK(rmdir(grant_path(share, "")) == 0, "rmdir %s", share);
}

/* ---- tenants -------------------------------------------------------------------------------------------------------------- */

/* Rounds of taking and giving; the most bytes that were kept at once. Whatever else than a refusal comes ends it. */
static uint64_t churn(unsigned rounds)
{
	CUdeviceptr kept[64];
	unsigned count = 0;
	uint64_t most = 0, random = 12345;
	size_t f, t;
	for (unsigned i = 0; i < rounds; i++) {
		random = random * UINT64_C(6364136223846793005) + 1;
		CUdeviceptr p;
		CUresult error = count < 64 ? cuMemAlloc_v2(&p, 2 * MIB) : CUDA_ERROR_OUT_OF_MEMORY;
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "an allocation gives %d", error);
		if (error == CUDA_SUCCESS)
			kept[count++] = p;
		if (count * 2 * MIB > most)
			most = count * 2 * MIB;
		OK(cuMemGetInfo_v2(&f, &t));
		CHECK(f <= t, "%zu free of %zu", f, t);
		if (count > 0 && (error != CUDA_SUCCESS || random >> 62 == 0))
			OK(cuMemFree_v2(kept[--count]));
	}
	while (count > 0)
		OK(cuMemFree_v2(kept[--count]));
	return most;
}

/* In a share that is closed not even a context is to be had, and in one that names another device not this one. */
static bool started(void)
{
	CUcontext context;
	OK(cuInit(0));
	CUresult error = cuDevicePrimaryCtxRetain(&context, 0);
	CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY || error == CUDA_ERROR_INVALID_DEVICE,
	      "a context gives %d", error);
	if (error == CUDA_SUCCESS)
		OK(cuCtxSetCurrent(context));
	return error == CUDA_SUCCESS;
}

/* Command: how many rounds. */
static void tenant(int in, int out)
{
	unsigned char rounds;
	bool ready = false;
	while ((rounds = player_next(in)) != 0) {
		alarm(WATCHDOG_S);
		ready = ready || started();
		player_answer(out, ready ? churn(rounds) : 0);
	}
}

/* UINT64_MAX: it has ended. */
static uint64_t ask(const struct player *p, unsigned char rounds)
{
	uint64_t most;
	if (write(p->to, &rounds, 1) != 1 || read(p->from, &most, sizeof(most)) != sizeof(most))
		return UINT64_MAX;
	return most;
}

static void ends(const struct player *p, const struct mutation *m, uint64_t seed, const char *who)
{
	struct rusage usage;
	int status;
	(void)!write(p->to, "", 1);
	close(p->to);
	close(p->from);
	CHECK(wait4(p->pid, &status, 0, &usage) == p->pid, "wait");
	CHECK(status == 0 || (m->change == CUT && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS),
	      "seed %lu: %s is %s; the program that %s ended with status 0x%x", (unsigned long)seed, file_name[m->file],
	      change_name[m->change], who, status);
	CHECK(usage.ru_maxrss < MOST_RSS, "seed %lu: the program that %s took %ld KiB", (unsigned long)seed, who,
	      usage.ru_maxrss);
}

/* ---- one scene ------------------------------------------------------------------------------------------------------------- */

static unsigned counts[FILES][CHANGES], refused_later;

static void play(uint64_t seed)
{
	char share[32];
	struct mutation m = draw_mutation(seed);
	snprintf(share, sizeof(share), "share-%lu", (unsigned long)seed);
	make_share(share);
	struct player runs = player_start(tenant), comes = player_start(tenant);
	uint64_t most = ask(&runs, 20);
	CHECK(most > 0 && most <= LIMIT, "seed %lu: %lu bytes before the change", (unsigned long)seed,
	      (unsigned long)most);
	apply(share, &m);
	uint64_t before = ask(&runs, 40), after = ask(&comes, 40);
	ends(&runs, &m, seed, "runs meanwhile");
	ends(&comes, &m, seed, "comes later");
	if (!m.sealed && m.file != LEDGER) {
		CHECK(before == UINT64_MAX || before <= LIMIT, "seed %lu: %lu bytes", (unsigned long)seed,
		      (unsigned long)before);
		CHECK(after == UINT64_MAX || after <= LIMIT, "seed %lu: %lu bytes for a newcomer", (unsigned long)seed,
		      (unsigned long)after);
	}
	counts[m.file][m.change]++;
	refused_later += after == 0;
	remove_share(share);
}

static void say_counts(void)
{
	for (int file = 0; file < FILES; file++)
		for (int change = 0; change < CHANGES; change++)
			if (counts[file][change])
				NOTE("  %s %s: %u", file_name[file], change_name[change], counts[file][change]);
	NOTE("  newcomers that got nothing: %u", refused_later);
}

int main(int argc, char **argv)
{
	uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000,
	         first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	signal(SIGPIPE, SIG_IGN);
	scene("make the machine", touch);
	make_share("neighbour");
	struct player neighbour = player_start(tenant);
	NOTE("%lu changes, seeds %lu to %lu", (unsigned long)count, (unsigned long)first,
	     (unsigned long)(first + count - 1));
	for (uint64_t seed = first; seed < first + count; seed++) {
		play(seed);
		CHECK(ask(&neighbour, 60) == LIMIT, "seed %lu: the neighbour's share is not whole",
		      (unsigned long)seed);
	}
	player_end(&neighbour, false);
	say_counts();
	return 0;
}

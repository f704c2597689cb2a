/* Memory that processes share is the same for each of them with libvgpu.so as without it. This program runs itself
 * twice, alone and under the library with a limit that it does not meet, and compares what both said, byte for byte.
 * What they say: three processes share a piece of memory in each of the four ways (sharing_ways.h), write patterns into
 * it, read them on the other side, and close, free, exit or are killed in every order; after each call its answer, and
 * after each action attributes, sizes, a digest of the bytes, and what cuMemGetInfo tells.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "sharing_ways.h"

/* Who does what: M made it, T and V import it. m make, x export to T, y export to V, i import, w write, r read and
 * describe, o let go of the object, e let go of the memory (T and V: of what came last), q exit, k are killed.
 * Of events: h record behind work that waits, s find it not ready and wait for it in a stream, g let the work go on. */
static const char *const orders[] = {
        "Mm Mw Mx Ti Tr Tw Mr Te Mr Me", /* in order */
        "Mm Mx Ti Mw Tr To Tr Te Mo Mr Me", /* objects go first */
        "Mm Mw Mx Ti Me Tr Tw Tr Te", /* the maker frees first */
        "Mm Mw Mx Ti Mo Me Tr To Te", /* its object, too */
        "Mm Mw Mx Ti Mq Tr Tw Tr Te", /* it exits */
        "Mm Mw Mx Ti Mk Tr To Tw Tr Te", /* it is killed */
        "Mm Mw Mx Ti Tw Tq Mr Mx Me", /* the other exits */
        "Mm Mw Mx Ti Tw Tk Mr My Vi Vr Vw Mr Ve Me", /* ... is killed, and a third comes */
        "Mm Mw Mx Ti My Vi Tw Vr Vw Mr Te Mr Vr Ve Me", /* three hold it */
        "Mm Mw Mx Ti My Vi Mk Tw Vr Tk Vr Vw Vr Ve", /* the last of three keeps it */
        "Mm Mw Mx Ti Mx Ti Tw Mr Te Tr Te Mr Me", /* imported twice */
        "Mm Mw Mx Ti Te Mx Ti Tr Te Mx Ti Tw Mr Te Me", /* and again and again */
        "Mm Mw Me Mm Mw Mx Ti Tr Te Me Mm Mx Ti Tw Te Mr Me", /* memory comes back */
};
static const char *const of_events[] = {
        "Mm Mx Ti Ts Mh Ts Mg Tr Mr Te Me",
        "Mm Mx Ti Mh Ts Mk Tr Te",
        "Mm Mx Ti Mh Ts To Mg Tr Te Mo Me",
};

/* ---- one process ------------------------------------------------------------------------------------------------- */

struct actor {
	char name;
	pid_t pid;
	int command[2]; /* theirs, the director's */
	int line[2]; /* the maker's end, theirs */
};

static unsigned char host[BYTES];
static struct piece held[MOST];
static unsigned count;
static int gate[2];

static void write_pattern(const struct piece *m)
{
	static uint32_t seed;
	size_t bytes = m->bytes;
	uint64_t word;
	seed = seed * 31 + (uint32_t)who;
	for (size_t i = 0; i < sizeof host; i += sizeof word) {
		word = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
		memcpy(host + i, &word, sizeof word);
	}
	SAY(cuMemcpyHtoD(m->p, host, bytes));
	SAY(cuMemsetD8(m->p + bytes / 2, (unsigned char)who, 1000));
	SAY(cuMemcpyDtoD(m->p + bytes - 100, m->p, 100));
}

static void say_digest(const struct piece *m)
{
	uint64_t digest = UINT64_C(0xcbf29ce484222325), word;
	size_t bytes = m->bytes;
	memset(host, 0, sizeof host);
	if (SAY(cuMemcpyDtoH(host, m->p, bytes)) != CUDA_SUCCESS)
		return;
	for (size_t i = 0; i < sizeof host; i += sizeof word) {
		memcpy(&word, host + i, sizeof word);
		digest = (digest ^ word) * UINT64_C(0x100000001b3);
		digest ^= digest >> 29;
	}
	say_number("digest", digest);
}

static void say_attributes(const struct piece *m)
{
	static const CUpointer_attribute number[] = {
	        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
	        CU_POINTER_ATTRIBUTE_IS_MANAGED,   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	        CU_POINTER_ATTRIBUTE_RANGE_SIZE,   CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
	        CU_POINTER_ATTRIBUTE_MAPPED,       CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
	        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
	        CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
	static const CUpointer_attribute address[] = {CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
	                                              CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
	                                              CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR};
	CUdeviceptr base = 0;
	size_t size = 0;
	for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
		uint64_t value = 0;
		if (SAY(cuPointerGetAttribute(&value, number[i], m->p + 1)) == CUDA_SUCCESS)
			say_number("attribute", value);
	}
	for (size_t i = 0; i < sizeof address / sizeof *address; i++) {
		CUdeviceptr value = 0;
		if (SAY(cuPointerGetAttribute(&value, address[i], m->p + 1)) == CUDA_SUCCESS)
			say_number("before it", m->p + 1 - value);
	}
	if (SAY(cuMemGetAddressRange(&base, &size, m->p + 1)) == CUDA_SUCCESS)
		printf("%c   %llu of %zu\n", who, (unsigned long long)(m->p - base), size);
}

static void say_memory(void)
{
	size_t left = 0, total = 0;
	SAY(cuMemGetInfo(&left, &total));
	printf("%c   %zu of %zu\n", who, left, total);
}

static void begin(void)
{
	CUcontext context;
	static bool begun;
	if (begun)
		return;
	begun = true;
	CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
	              cuCtxSetCurrent(context) == CUDA_SUCCESS,
	      "no context");
}

static void CUDA_CB wait_at_gate(void *unused)
{
	(void)unused;
	hear(gate[0]);
}

/* In a stream of its own, so that other calls do not wait for it. */
static CUstream stream(void)
{
	static CUstream one;
	if (one == NULL)
		SAY(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	return one;
}

static void record(const struct piece *m)
{
	size_t bytes = m->bytes;
	SAY(cuLaunchHostFunc(stream(), wait_at_gate, NULL));
	SAY(cuMemsetD8Async(m->p, 77, bytes, stream()));
	SAY(cuEventRecord(m->event, stream()));
	SAY(cuEventQuery(m->event));
}

static void open_gate(const struct piece *m)
{
	tell(gate[1]);
	SAY(cuStreamSynchronize(stream()));
	SAY(cuEventQuery(m->event));
}

/* What the wait is for is read by the action after it. */
static void wait_for(const struct piece *m)
{
	CUdeviceptr copy = m->p + m->bytes / 2;
	float ms;
	SAY(cuEventQuery(m->event));
	SAY(cuEventElapsedTime(&ms, m->event, m->event));
	SAY(cuStreamWaitEvent(stream(), m->event, 0));
	SAY(cuMemcpyDtoDAsync(copy, m->p, 1000, stream()));
}

static void act(const struct way *way, char action, int line)
{
	struct piece *last = count ? &held[count - 1] : NULL;
	begin();
	if (action == 'm' || action == 'i') {
		CHECK(count < MOST, "too many");
		last = &held[count++];
		*last = (struct piece){0};
	}
	CHECK(last != NULL, "%c%c: there is nothing", who, action);
	if (action == 'm')
		way->make(last);
	else if (action == 'x' || action == 'y')
		way->give(last, line);
	else if (action == 'i')
		way->take(last, line);
	else if (action == 'w')
		write_pattern(last);
	else if (action == 'h')
		record(last);
	else if (action == 'g')
		open_gate(last);
	else if (action == 's')
		wait_for(last);
	if (action == 'r') {
		SAY(cuStreamSynchronize(stream()));
		say_digest(last);
		say_attributes(last);
	} else if (action == 'o') {
		way->let_go(last, who == 'M');
		last->let_go = true;
	} else if (action == 'e') {
		way->end(last, who == 'M');
		count--;
	}
	say_memory();
}

static void perform(const struct way *way, int command, const int line[2])
{
	char action;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(pipe(gate) == 0, "pipe");
	while (read(command, &action, 1) == 1) {
		if (action == 'q')
			exit(0);
		act(way, action, action == 'y' ? line[1] : line[0]);
		fflush(stdout);
		tell(command);
	}
	_exit(0);
}

/* ---- the director, who calls no driver --------------------------------------------------------------------------- */

static void engage(const struct way *way, struct actor *actor, const int line[2])
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, actor->command) == 0, "socketpair");
	fflush(stdout);
	actor->pid = fork();
	CHECK(actor->pid >= 0, "fork");
	if (actor->pid == 0) {
		who = actor->name;
		close(actor->command[1]);
		perform(way, actor->command[0], line);
	}
	close(actor->command[0]);
}

static void dismiss(struct actor *actor, char how)
{
	int status;
	if (actor->pid == 0)
		return;
	if (how == 'q')
		CHECK(write(actor->command[1], &how, 1) == 1, "%c is gone", actor->name);
	else
		kill(actor->pid, SIGKILL);
	CHECK(waitpid(actor->pid, &status, 0) == actor->pid, "waitpid");
	CHECK(how == 'q' ? status == 0 : WIFSIGNALED(status), "%c ended with %#x", actor->name, status);
	actor->pid = 0;
	close(actor->command[1]);
}

static void play(const struct way *way, const char *order)
{
	struct actor actor[] = {{.name = 'M'}, {.name = 'T'}, {.name = 'V'}};
	int line[2][2];
	printf("%s: %s\n", way->name, order);
	for (int i = 0; i < 2; i++)
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line[i]) == 0, "socketpair");
	engage(way, &actor[0], (int[]){line[0][0], line[1][0]});
	engage(way, &actor[1], (int[]){line[0][1], -1});
	engage(way, &actor[2], (int[]){line[1][1], -1});
	for (const char *at = order; *at != 0; at += at[2] == ' ' ? 3 : 2) {
		struct actor *a = &actor[at[0] == 'M' ? 0 : at[0] == 'T' ? 1 : 2];
		printf(" %c%c\n", at[0], at[1]);
		fflush(stdout);
		if (at[1] == 'q' || at[1] == 'k') {
			dismiss(a, at[1]);
			continue;
		}
		CHECK(write(a->command[1], &at[1], 1) == 1, "%c is gone", a->name);
		hear(a->command[1]);
	}
	for (int i = 0; i < 3; i++)
		dismiss(&actor[i], 'k');
	for (int i = 0; i < 4; i++)
		close(line[i / 2][i % 2]);
}

static void play_all(void)
{
	for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
		for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
			play(&ways[w], orders[i]);
	for (size_t i = 0; i < sizeof of_events / sizeof *of_events; i++)
		play(&ways[0], of_events[i]);
	fflush(stdout);
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

/* LD_PRELOAD without libvgpu.so: a sanitizer's library stays. */
static void without_library(void)
{
	char kept[4096] = "", all[4096];
	snprintf(all, sizeof all, "%s", getenv("LD_PRELOAD"));
	for (char *one = strtok(all, ":"); one != NULL; one = strtok(NULL, ":"))
		if (strcmp(one, getenv("TEST_SHIM")) != 0)
			snprintf(kept + strlen(kept), sizeof kept - strlen(kept), "%s%s", *kept ? ":" : "", one);
	setenv("LD_PRELOAD", kept, 1);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
}

/* This program again, on a machine of its own; what it says goes into a file of that name. */
static FILE *said(const char *name, bool library)
{
	char directory[512], path[600];
	int status;
	snprintf(directory, sizeof directory, "%s/%s", getenv("TEST_SCRATCH"), name);
	CHECK(mkdir(directory, 0700) == 0, "%s", directory);
	snprintf(path, sizeof path, "%s.txt", directory);
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		setenv("PARTAGE_SIM_DIR", directory, 1);
		if (!library)
			without_library();
		int out = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		CHECK(out >= 0 && dup2(out, STDOUT_FILENO) == STDOUT_FILENO, "%s", path);
		execl("/proc/self/exe", "test_same_sharing", "play", (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0, "%s ended with %#x", name, status);
	FILE *file = fopen(path, "re");
	CHECK(file != NULL, "%s", path);
	return file;
}

int main(int argc, char **argv)
{
	char one[512], other[512], scene[512] = "";
	unsigned lines = 0;
	if (argc > 1 && strcmp(argv[1], "play") == 0) {
		play_all();
		return 0;
	}
	FILE *alone = said("alone", false), *limited = said("limited", true);
	while (fgets(one, sizeof one, alone)) {
		CHECK(fgets(other, sizeof other, limited), "nothing more is said with it than line %u", lines);
		lines++;
		CHECK(strcmp(one, other) == 0, "%sline %u: %s without the library, %s with it", scene, lines, one,
		      other);
		if (*one != ' ' && one[1] != ' ')
			snprintf(scene, sizeof scene, "%s", one);
	}
	CHECK(!fgets(other, sizeof other, limited), "with it more is said: %s", other);
	CHECK(lines > 1000, "only %u lines were compared", lines);
	return 0;
}

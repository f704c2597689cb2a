/* An allocation handle that two processes hold: the card counts it once, as long as either does, whoever goes first and
 * however. Its bytes stay where they are, and with the last holder the memory goes. */
#include <sys/prctl.h>
#include <sys/socket.h>

#include "memory_test.h"
#include "pass_fd.h"

#define SIZE (8 * GIB)

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUdeviceptr map_whole(CUmemGenericAllocationHandle handle)
{
	CUdeviceptr p;

	OK(cuMemAddressReserve(&p, SIZE, 0, 0, 0));
	OK(cuMemMap(p, SIZE, 0, handle, 0));
	OK(cuMemSetAccess(p, SIZE, &read_write, 1));
	OK(cuMemRelease(handle));
	return p;
}

/* Commands: u unmaps (and so lets go), anything else is answered. */
static void obey(int socket, CUdeviceptr p)
{
	for (;;) {
		if (hear(socket) == 'u')
			OK(cuMemUnmap(p, SIZE));
		say(socket, 'd');
	}
}

static void maker(int socket)
{
	CUmemGenericAllocationHandle handle;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* else it waits for ever where a check fails */
	start();
	OK(cuMemCreate(&handle, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CUdeviceptr p = map_whole(handle);
	OK(cuMemcpyHtoD(p + GIB, "there", 6));
	send_fd(socket, fd);
	close(fd);
	obey(socket, p);
}

static void importer(int socket)
{
	CUmemGenericAllocationHandle first, second;
	char text[6];
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	fd = receive_fd(socket);
	/* Twice, as a process may: they count as one. */
	OK(cuMemImportFromShareableHandle(&first, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemImportFromShareableHandle(&second, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuMemRelease(second));
	CUdeviceptr p = map_whole(first);
	say(socket, 'r');
	hear(socket); /* whatever has happened to the maker by now */
	OK(cuMemcpyDtoH(text, p + GIB, 6));
	CHECK(!strcmp(text, "there"), "the importer reads '%s'", text);
	say(socket, 'd');
	obey(socket, p);
}

static uint64_t bytes_of(pid_t pid)
{
	for (int i = 0; i < SIM_CLIENTS; i++)
		if (the_machine()->client[i].state && the_machine()->client[i].pid == pid)
			return the_machine()->client[i].device[0].memory;
	return 0;
}

/* The card's count, as a third process sees it. */
static void card_counts(int gib)
{
	start();
	CHECK(free_bytes() == usable() - (uint64_t)gib * GIB, "%lu GiB used, must be %d",
	      (usable() - free_bytes()) / GIB, gib);
	CHECK(the_machine()->device[0].used == (uint64_t)gib * GIB, "used %lu", the_machine()->device[0].used);
	CHECK(the_machine()->device[0].peak <= SIZE, "counted more than once: peak %lu", the_machine()->device[0].peak);
}

static void command(int socket, char what)
{
	say(socket, what);
	CHECK(hear(socket) == 'd', "done");
}

static void kill_child(pid_t child)
{
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child, "kill");
}

/* Passes the descriptor on from the maker to the importer. */
static void introduce(const int *to_maker, const int *to_importer, pid_t *made, pid_t *imported)
{
	*made = start_child(maker, to_maker[1]);
	*imported = start_child(importer, to_importer[1]); /* before there is a descriptor that it would inherit */
	int fd = receive_fd(to_maker[0]);
	in_child(card_counts, 8);
	send_fd(to_importer[0], fd);
	close(fd);
	CHECK(hear(to_importer[0]) == 'r', "ready");
	in_child(card_counts, 8);
	CHECK(bytes_of(*made) == SIZE && bytes_of(*imported) == 0, "the maker pays");
}

static void both_ways(bool by_kill)
{
	int to_maker[2], to_importer[2];
	pid_t made, imported;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_maker) == 0, "socketpair");
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_importer) == 0, "socketpair");
	/* the maker goes first */
	introduce(to_maker, to_importer, &made, &imported);
	if (by_kill)
		kill_child(made);
	else
		command(to_maker[0], 'u');
	in_child(card_counts, 8);
	CHECK(bytes_of(imported) == SIZE, "the importer pays now: %lu", bytes_of(imported));
	command(to_importer[0], '?');
	if (by_kill)
		kill_child(imported);
	else
		command(to_importer[0], 'u');
	in_child(card_counts, 0);
	if (!by_kill)
		kill_child(made), kill_child(imported);
	/* the importer goes first */
	introduce(to_maker, to_importer, &made, &imported);
	command(to_importer[0], '?');
	if (by_kill)
		kill_child(imported);
	else
		command(to_importer[0], 'u');
	in_child(card_counts, 8);
	CHECK(bytes_of(made) == SIZE, "the maker pays still: %lu", bytes_of(made));
	command(to_maker[0], 'u');
	in_child(card_counts, 0);
	kill_child(made);
	if (!by_kill)
		kill_child(imported);
}

/* A client that dies in the middle of a hand-over, played by the words that it would leave: the share has a new payer,
 * the sums do not know yet, and the lock is taken. */
static void half_way(void)
{
	int to_maker[2], to_importer[2], slot[2] = {0, 0};
	pid_t made, imported;
	struct sim_device_state *state = &the_machine()->device[0];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_maker) == 0, "socketpair");
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_importer) == 0, "socketpair");
	introduce(to_maker, to_importer, &made, &imported);
	for (int i = 0; i < SIM_CLIENTS; i++) {
		if (the_machine()->client[i].state && the_machine()->client[i].pid == made)
			slot[0] = i;
		if (the_machine()->client[i].state && the_machine()->client[i].pid == imported)
			slot[1] = i;
	}
	kill_child(made);
	for (uint32_t i = 0; i < state->nshares; i++)
		if (state->share[i].id)
			state->share[i].payer = slot[1];
	__atomic_store_n(&state->lock,
	                 (uint64_t)the_machine()->client[slot[0]].generation << 32 | (uint64_t)(slot[0] + 1),
	                 __ATOMIC_RELEASE);
	in_child(card_counts, 8);
	CHECK(bytes_of(imported) == SIZE, "counted again: %lu", bytes_of(imported));
	kill_child(imported);
	in_child(card_counts, 0);
}

int main(void)
{
	setenv("PARTAGE_SIM", "zero", 1); /* contexts cost nothing: the shared bytes are all there is */
	in_child(card_counts, 0);
	both_ways(false);
	both_ways(true);
	half_way();
	return 0;
}

/* machine_nodes.c: which of the machine's devices this process may open.
 *
 * A real driver shows a process the cards whose device nodes it can open, and a container has the nodes that it was
 * given. A simulated machine may have nodes too (`partage sim tree`): plain files, mounted into containers as /dev/nvidiaN.
 * They are known by device number and inode, which only the mount can bring into a container: neither the environment
 * nor a file, link or mknod made there shows more. A machine without nodes shows all its devices. Called once when a
 * library starts (cuInit, nvmlInit). What can go wrong: a node that is missing, another file in its place, one that the
 * user may not open: the device is not there.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine_local.h"

/* as found by the last look, atomic; bits of `seen_devices` by index in the machine file */
static uint32_t seen_devices = ~UINT32_C(0);
static bool seen_control = true, seen_memory = true;

static bool opens(const char *directory, const char *name, const struct sim_node *node)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
		return false;
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return false;
	bool same = fstat(fd, &st) == 0 && st.st_dev == node->device && st.st_ino == node->inode;
	close(fd);
	return same;
}

/* In /dev, as in a container; else where the host has them, unless the user says where. */
static bool node_opens(const char *name, const struct sim_node *node)
{
	const char *given = getenv("PARTAGE_SIM_DEV"), *host = sim_machine->nodes.directory;

	if (!node->device && !node->inode)
		return false;
	if (given && *given)
		return opens(given, name, node);
	return opens("/dev", name, node) || (host[0] == '/' && opens(host, name, node));
}

static bool card_opens(uint32_t card)
{
	char name[32];

	snprintf(name, sizeof name, "nvidia%u", sim_machine->model[card].minor);
	return node_opens(name, &sim_machine->nodes.device[card][SIM_NODE_CARD]);
}

/* The numbers that NVIDIA's kernel module gives: 2 for the driver, then 15 GPU instances a card with 8 compute instances
 * each. */
static bool instance_opens(uint32_t index)
{
	const struct sim_device_model *model = &sim_machine->model[index];
	const struct sim_node *nodes = sim_machine->nodes.device[index];
	unsigned gpu = 3 + (model->minor * 15 + model->gpu_instance) * 9;
	char gpu_name[48], compute_name[48];

	snprintf(gpu_name, sizeof gpu_name, "nvidia-caps/nvidia-cap%u", gpu);
	snprintf(compute_name, sizeof compute_name, "nvidia-caps/nvidia-cap%u", gpu + 1 + model->compute_instance);
	return card_opens((uint32_t)model->parent) && node_opens(gpu_name, &nodes[SIM_NODE_GPU]) &&
	       node_opens(compute_name, &nodes[SIM_NODE_COMPUTE]);
}

static bool device_opens(uint32_t index)
{
	const struct sim_device_model *model = &sim_machine->model[index];
	bool cut = model->mig == SIM_MIG_INSTANCE && model->parent >= 0 && (uint32_t)model->parent < sim_machine->ndev;

	return cut ? instance_opens(index) : card_opens(index);
}

void sim_nodes_look(void)
{
	const struct sim_nodes *nodes = &sim_machine->nodes;
	uint32_t found = 0;
	int saved = errno;
	bool used = __atomic_load_n(&nodes->used, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		found |= (uint32_t)(!used || device_opens(i)) << i;
	__atomic_store_n(&seen_devices, found, __ATOMIC_RELEASE);
	__atomic_store_n(&seen_control, !used || node_opens("nvidiactl", &nodes->control), __ATOMIC_RELEASE);
	__atomic_store_n(&seen_memory, !used || node_opens("nvidia-uvm", &nodes->memory), __ATOMIC_RELEASE);
	errno = saved;
}

bool sim_nodes_control(void)
{
	return __atomic_load_n(&seen_control, __ATOMIC_ACQUIRE);
}

bool sim_nodes_memory(void)
{
	return __atomic_load_n(&seen_memory, __ATOMIC_ACQUIRE);
}

bool sim_node_seen(uint32_t device)
{
	return __atomic_load_n(&seen_devices, __ATOMIC_ACQUIRE) >> device & 1;
}

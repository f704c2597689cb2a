/* world.h: what the ledger tests stand on: a directory of their own, a policy written as the agent writes it, a driver
 * that names devices and does nothing else, and children that run one scene each. The library's state is wiped by fork, so
 * every scene begins as a fresh process would. */
#ifndef PARTAGE_TESTS_LEDGER_WORLD_H
#define PARTAGE_TESTS_LEDGER_WORLD_H

#include <stdatomic.h>

#include "check.h"
#include "core.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* ---- directory ---------------------------------------------------------------------------------------------------- */

extern char world_dir[256];  /* fresh; also PARTAGE_DIR after world_share() */
void world_begin(void);      /* makes the directory, clears the environment of limits, devices 0 and 1 visible */
const char *world_path(const char *name);
void world_write(const char *name, const void *bytes, size_t count);

/* ---- policy and ledger ------------------------------------------------------------------------------------------------- */

struct ptg_policy world_policy(uint64_t limit);        /* open, both devices, contexts of 0 bytes, checksum right */
void world_seal(struct ptg_policy *policy);            /* checksum */
void world_share(uint64_t limit);                      /* policy, empty ledger, PARTAGE_DIR */
void world_change(const struct ptg_policy *policy);    /* in place under the sequence, as the agent does */
struct ptg_ledger *world_ledger(void);                 /* mapped for the test to look at */
uint64_t world_used(unsigned device);                  /* bytes in the container's word */
uint64_t world_sum(unsigned device);                   /* bytes of all slots, after completing the last change */

/* ---- the driver ---------------------------------------------------------------------------------------------------------- */

extern int fake_visible[8]; /* machine numbers by ordinal */
extern int fake_count;
extern int fake_machine; /* devices of the machine */
extern bool fake_ready; /* cuInit was called */
extern bool fake_nvml; /* NVML is there */
extern atomic_uint fake_calls; /* of the driver, any */
const char *fake_uuid(int number);

/* ---- scenes ---------------------------------------------------------------------------------------------------------------- */

/* Run in a child; fails the test unless it exits 0. */
void scene(const char *name, void (*body)(void));
/* A child that runs body and then waits, with what it has, until it is let go or killed. */
struct actor {
	pid_t pid;
	int to, from;
};
struct actor actor_start(void (*body)(void));
void actor_end(struct actor *actor); /* exit(0), waited for */
void actor_kill(struct actor *actor); /* SIGKILL, waited for */

#endif

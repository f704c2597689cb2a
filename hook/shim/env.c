/* env.c: the limits and switches in the environment, read once per process.
 *
 * Called by setup.c. Without a policy file they are the share; under one they may only lower it (setup.c applies that).
 * What can go wrong: a variable does not parse. The answer is then "refuse", with the variable, its value and the
 * accepted forms, since running without the limit would be the opposite of what was asked.
 *
 *   CUDA_DEVICE_MEMORY_LIMIT       size    every device without a number of its own
 *   CUDA_DEVICE_MEMORY_LIMIT_<n>   size    device n: under a policy its position there, else the machine's (PCI order)
 *   MAX_GPU_MEM_MB                 MiB     as CUDA_DEVICE_MEMORY_LIMIT; the lower one counts where both are set
 *   CUDA_DISABLE_CONTROL           switch  no limit at all        } ignored under a policy
 *   CUDA_OVERSUBSCRIBE             switch  show the limit even where the card is smaller }
 *   PARTAGE_CONTEXT_MEMORY         size    what one context costs }
 * A limit of 0 means no limit. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_size(const char *name, uint64_t *bytes, bool *set, char reason[VGPU_REASON_MAX])
{
	const char *text = getenv(name);
	*set = text && *text;
	if (!*set || vgpu_parse_size(text, bytes) == 0)
		return 0;
	snprintf(reason, VGPU_REASON_MAX, "%s=%.64s is not a size; accepted: " VGPU_SIZE_FORMS, name, text);
	return -1;
}

static int read_mib(struct vgpu_env *env, char reason[VGPU_REASON_MAX])
{
	const char *text = getenv("MAX_GPU_MEM_MB");
	uint64_t mib;
	if (!text || !*text)
		return 0;
	if (strspn(text, "0123456789") != strlen(text) || vgpu_parse_size(text, &mib) != 0 || mib > UINT64_MAX >> 20) {
		snprintf(reason, VGPU_REASON_MAX, "MAX_GPU_MEM_MB=%.64s is not a whole number of MiB", text);
		return -1;
	}
	if (mib && (!env->all || mib << 20 < env->all))
		env->all = mib << 20;
	return 0;
}

static int read_numbered(struct vgpu_env *env, char reason[VGPU_REASON_MAX])
{
	for (int i = 0; i < VGPU_ORDINALS_MAX; i++) {
		char name[64];
		snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
		if (read_size(name, &env->each[i], &env->has_each[i], reason) != 0)
			return -1;
		if (env->has_each[i]) {
			env->numbered = true;
			env->limited |= env->each[i] != 0;
		}
	}
	return 0;
}

int vgpu_env_read(struct vgpu_env *env, char reason[VGPU_REASON_MAX])
{
	bool set;
	memset(env, 0, sizeof *env);
	env->context = PTG_CONTEXT_UNKNOWN;
	env->control_off = vgpu_parse_true(getenv("CUDA_DISABLE_CONTROL"));
	env->oversubscribe = vgpu_parse_true(getenv("CUDA_OVERSUBSCRIBE"));
	if (read_size("CUDA_DEVICE_MEMORY_LIMIT", &env->all, &set, reason) != 0 || read_mib(env, reason) != 0 ||
	    read_numbered(env, reason) != 0 || read_size("PARTAGE_CONTEXT_MEMORY", &env->context, &set, reason) != 0)
		return -1;
	env->limited |= env->all != 0;
	return 0;
}

uint64_t vgpu_env_limit(const struct vgpu_env *env, int number)
{
	if (number >= 0 && number < VGPU_ORDINALS_MAX && env->has_each[number])
		return env->each[number];
	return env->all;
}

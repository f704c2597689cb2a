/* crc32c.h: the policy's checksum, for the writers in Python and the readers that are not in a tenant's process.
 *
 * Included by hook/gen/abi_support.h and hook/arbiter; libvgpu.so has one of its own with a table. CRC-32C (Castagnoli,
 * reflected 0x82f63b78), bit by bit: 2 KiB a few times a second needs no table. Nothing can go wrong. */
#ifndef PARTAGE_CRC32C_H
#define PARTAGE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include "partage/policy.h"

static inline uint32_t ptg_crc32c(const void *data, size_t n)
{
	const unsigned char *p = data;
	uint32_t crc = ~0u;
	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
	}
	return ~crc;
}

static inline uint32_t ptg_policy_crc(const struct ptg_policy *policy)
{
	return ptg_crc32c(&policy->generation, sizeof *policy - offsetof(struct ptg_policy, generation));
}

#endif

/* module_fatbin.c: picks the image for a device out of a fatbin, and unpacks it.
 *
 * A fatbin: header of 16 bytes (magic, u16 version, u16 header size, u64 bytes that follow), then entries, each with
 * its own header (fields below, found by looking at what NVIDIA's fatbinary tool writes) and padded payload. Of cubins
 * that run on the device the newest wins, else the newest PTX. Payloads may be LZ4 blocks, which are unpacked here;
 * Zstandard, the default since CUDA 13, is not (the log says so; `--compress-mode=speed` or `none` avoids it). Called
 * by module_image.c and module_elf.c. What can go wrong: CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "module_image.h"

#define FATBIN_MAGIC 0xba55ed50u
#define KIND_PTX     1
#define KIND_ELF     2
#define FLAG_LZ4     UINT64_C(0x2000)
#define FLAG_ZSTD    UINT64_C(0x8000)
#define LARGEST      (UINT64_C(1) << 30) /* bytes of one unpacked image */

struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header_size;
	uint64_t payload_size; /* padded */
	uint32_t packed_size;  /* 0: not packed */
	uint32_t options;
	uint16_t minor, major;
	uint32_t sm;
	uint32_t name, name_size;
	uint64_t flags;
	uint64_t reserved;
	uint64_t unpacked_size;
};
_Static_assert(sizeof(struct fatbin_entry) == 64, "as in the file");

struct choice {
	struct fatbin_entry entry;
	const unsigned char *payload;
	bool found;
};

/* A length that goes on in further bytes while they are 255; -1 at the end of the input. */
static int64_t lz4_length(const unsigned char **in, const unsigned char *end, unsigned first)
{
	int64_t length = first;
	if (first != 15)
		return length;
	unsigned char more;
	do {
		if (*in >= end)
			return -1;
		more = *(*in)++;
		length += more;
	} while (more == 255);
	return length;
}

int64_t sim_lz4_decode(const unsigned char *in, size_t in_size, unsigned char *out, size_t out_size)
{
	const unsigned char *end = in + in_size;
	size_t done = 0;
	while (in < end) {
		unsigned token = *in++;
		int64_t literals = lz4_length(&in, end, token >> 4);
		if (literals < 0 || literals > end - in || (uint64_t)literals > out_size - done)
			return -1;
		memcpy(out + done, in, (size_t)literals);
		in += literals;
		done += (size_t)literals;
		if (in == end)
			return (int64_t)done; /* the last sequence has no match */
		if (end - in < 2)
			return -1;
		size_t back = in[0] | (size_t)in[1] << 8;
		in += 2;
		int64_t match = lz4_length(&in, end, token & 15);
		if (match < 0 || !back || back > done || (uint64_t)match + 4 > out_size - done)
			return -1;
		for (match += 4; match > 0; match--, done++)
			out[done] = out[done - back];
	}
	return (int64_t)done;
}

static bool is_better(const struct choice *old, const struct fatbin_entry *entry, int cc)
{
	int sm = entry->sm > 999 ? 1000 : (int)entry->sm;
	if (sm > cc || (entry->kind == KIND_ELF && sm / 10 != cc / 10))
		return false;
	if (!old->found)
		return true;
	if (old->entry.kind != entry->kind)
		return entry->kind == KIND_ELF;
	return entry->sm > old->entry.sm;
}

static CUresult unpack(const struct choice *choice, unsigned char **out, size_t *size, struct sim_jit_log *log)
{
	const struct fatbin_entry *entry = &choice->entry;
	*size = entry->flags & FLAG_LZ4 ? entry->unpacked_size : entry->payload_size;
	if (*size > LARGEST || entry->packed_size > entry->payload_size)
		return CUDA_ERROR_INVALID_IMAGE;
	*out = malloc(*size + 1);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!(entry->flags & FLAG_LZ4)) {
		memcpy(*out, choice->payload, *size);
		return CUDA_SUCCESS;
	}
	int64_t got = sim_lz4_decode(choice->payload, entry->packed_size, *out, *size);
	if (got != (int64_t)*size) {
		sim_jit_say(log, "error   : the packed image of the fatbin does not unpack to its %zu bytes", *size);
		free(*out);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	return CUDA_SUCCESS;
}

static CUresult read_choice(struct sim_image *image, const struct choice *choice, int cc, struct sim_jit_log *log)
{
	unsigned char *data;
	size_t size;
	CUresult error = unpack(choice, &data, &size, log);
	if (error != CUDA_SUCCESS)
		return error;
	if (choice->entry.kind == KIND_ELF)
		error = sim_image_read_elf(image, data, size, cc, log);
	else
		error = sim_image_read_ptx(image, (char *)data, strnlen((char *)data, size), cc, log);
	free(data);
	return error;
}

/* Looks through one fatbin; *used is its size with header. */
static CUresult read_one(const unsigned char *data, size_t size, int cc, struct choice *choice, size_t *used,
                         struct sim_jit_log *log)
{
	uint32_t magic;
	uint16_t header;
	uint64_t rest;
	if (size < 16)
		return CUDA_ERROR_INVALID_IMAGE;
	memcpy(&magic, data, 4);
	memcpy(&header, data + 6, 2);
	memcpy(&rest, data + 8, 8);
	if (magic != FATBIN_MAGIC || header < 16 || header > size || rest > size - header)
		return CUDA_ERROR_INVALID_IMAGE;
	*used = header + rest;
	for (size_t at = header; at < *used;) {
		struct fatbin_entry entry;
		if (*used - at < sizeof(entry))
			return CUDA_ERROR_INVALID_IMAGE;
		memcpy(&entry, data + at, sizeof(entry));
		if (entry.header_size < sizeof(entry) || entry.header_size > *used - at ||
		    entry.payload_size > *used - at - entry.header_size)
			return CUDA_ERROR_INVALID_IMAGE;
		bool usable = (entry.kind == KIND_PTX || entry.kind == KIND_ELF) && is_better(choice, &entry, cc);
		if (usable && (entry.flags & FLAG_ZSTD))
			sim_jit_say(log,
			            "warning : the image for sm_%u is packed with Zstandard, which this driver does "
			            "not read",
			            entry.sm);
		else if (usable)
			*choice = (struct choice){entry, data + at + entry.header_size, true};
		at += entry.header_size + entry.payload_size;
	}
	return CUDA_SUCCESS;
}

CUresult sim_image_read_fatbin(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log)
{
	const unsigned char *at = data;
	size_t left = size;
	bool any = false;
	do { /* a section of a host object may hold several, each padded to 8 bytes */
		struct choice choice = {.found = false};
		size_t used = 0;
		CUresult error = read_one(at, left, cc, &choice, &used, log);
		if (error != CUDA_SUCCESS)
			sim_jit_say(log, "error   : the fatbin is damaged: an entry lies outside of its %zu bytes",
			            size);
		else if (choice.found)
			error = read_choice(image, &choice, cc, log);
		if (error != CUDA_SUCCESS)
			return error;
		any |= choice.found;
		used = (used + 7) & ~(size_t)7;
		used = used < left ? used : left;
		at += used;
		left -= used;
	} while (left >= 16);
	if (!any)
		sim_jit_say(log, "error   : the fatbin holds no usable code for sm_%d", cc);
	return any ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

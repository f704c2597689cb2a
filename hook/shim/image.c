/* image.c: how much device memory the variables of a program image take: PTX text, cubin, fatbin.
 *
 * Called by module.c before the driver loads the image. Only variables in global memory are counted: they may have any
 * size, while code is overhead and constants are bounded by the hardware. Of a fatbin the largest entry counts, whichever
 * the driver picks. Formats: PTX by NVIDIA's description of the language; cubins keep variables in the sections
 * .nv.global and .nv.global.init; fatbins as found by looking at what the tools write.
 * What can go wrong: an image that is none is the driver's to refuse, so it counts as 0. A declaration that is not
 * understood counts as UINT64_MAX, which never fits. Entries packed with Zstandard are not read and count as 0: whoever
 * watches from outside finds them as overhead. An image in memory has no size but what it says itself, as for the driver.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

#ifndef EM_CUDA
#define EM_CUDA 190
#endif
#define FATBIN_MAGIC  0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u /* what nvcc puts around a fatbin: magic, version, pointer */
#define KIND_PTX      1
#define KIND_ELF      2
#define FLAG_LZ4      UINT64_C(0x2000)
#define FLAG_ZSTD     UINT64_C(0x8000)
#define LARGEST       (UINT64_C(1) << 31) /* bytes of one unpacked entry */
#define SMALL         (UINT64_C(1) << 40) /* offsets and sizes beyond this are no file's */

static uint64_t add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- cubin ------------------------------------------------------------------------------------------------------- */

static bool section_at(const char *data, uint64_t size, const Elf64_Ehdr *header, unsigned index, Elf64_Shdr *out)
{
	uint64_t at = header->e_shoff + (uint64_t)index * sizeof(*out);
	if (index >= header->e_shnum || header->e_shoff > SMALL || at > size || size - at < sizeof(*out))
		return false;
	memcpy(out, data + at, sizeof(*out));
	return out->sh_type == SHT_NOBITS || (out->sh_offset <= size && out->sh_size <= size - out->sh_offset);
}

static uint64_t elf_variables(const char *data, uint64_t size);
static uint64_t fatbin_variables(const char *data, uint64_t size);

static bool begins(const char *name, uint64_t room, const char *with)
{
	return strnlen(name, room) < room && strncmp(name, with, strlen(with)) == 0;
}

static uint64_t section_variables(const char *data, const Elf64_Ehdr *header, const Elf64_Shdr *section,
                                  const char *name, uint64_t room)
{
	if (header->e_machine == EM_CUDA)
		return begins(name, room, ".nv.global") ? section->sh_size : 0;
	if (section->sh_type != SHT_NOBITS &&
	    (begins(name, room, ".nv_fatbin") || begins(name, room, "__nv_relfatbin")))
		return fatbin_variables(data + section->sh_offset, section->sh_size);
	return 0;
}

static uint64_t elf_variables(const char *data, uint64_t size)
{
	Elf64_Ehdr header;
	Elf64_Shdr names, section;
	uint64_t sum = 0;
	if (size < sizeof(header))
		return 0;
	memcpy(&header, data, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(section) ||
	    !section_at(data, size, &header, header.e_shstrndx, &names) || names.sh_type != SHT_STRTAB)
		return 0;
	for (unsigned i = 1; i < header.e_shnum; i++)
		if (section_at(data, size, &header, i, &section) && section.sh_name < names.sh_size)
			sum = add(sum,
			          section_variables(data, &header, &section, data + names.sh_offset + section.sh_name,
			                            names.sh_size - section.sh_name));
	return sum;
}

/* ---- fatbin ------------------------------------------------------------------------------------------------------ */

struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header_size;
	uint64_t payload_size; /* padded */
	uint32_t packed_size;
	uint32_t reserved[5];
	uint64_t flags;
	uint64_t reserved2;
	uint64_t unpacked_size;
};
_Static_assert(sizeof(struct fatbin_entry) == 64, "as in the file");

/* A length that goes on in further bytes while they are 255. */
static bool lz4_length(const unsigned char **in, const unsigned char *end, uint64_t *length)
{
	unsigned char more = 255;
	if (*length != 15)
		return true;
	for (; more == 255; *length += more) {
		if (*in >= end)
			return false;
		more = *(*in)++;
	}
	return true;
}

/* Unpacks as many bytes as the block really has. */
static uint64_t lz4_unpack(const unsigned char *in, uint64_t in_size, unsigned char *out, uint64_t room)
{
	const unsigned char *end = in + in_size;
	uint64_t done = 0;
	while (in < end) {
		uint64_t literals = *in >> 4, match = *in & 15;
		in++;
		if (!lz4_length(&in, end, &literals) || literals > (uint64_t)(end - in) || literals > room - done)
			break;
		memcpy(out + done, in, literals);
		in += literals;
		done += literals;
		if (end - in < 2)
			break;
		uint64_t back = in[0] | (uint64_t)in[1] << 8;
		in += 2;
		if (!lz4_length(&in, end, &match) || back == 0 || back > done || match + 4 > room - done)
			break;
		for (match += 4; match > 0; match--, done++)
			out[done] = out[done - back];
	}
	return done;
}

static uint64_t payload_variables(unsigned kind, const char *data, uint64_t size)
{
	return kind == KIND_ELF ? elf_variables(data, size) : vgpu_ptx_variables(data, size);
}

static uint64_t entry_variables(const struct fatbin_entry *entry, const char *payload)
{
	if ((entry->kind != KIND_PTX && entry->kind != KIND_ELF) || (entry->flags & FLAG_ZSTD))
		return 0;
	if (!(entry->flags & FLAG_LZ4))
		return payload_variables(entry->kind, payload, entry->payload_size);
	if (entry->unpacked_size > LARGEST || entry->packed_size > entry->payload_size)
		return 0;
	unsigned char *unpacked = malloc(entry->unpacked_size + 1);
	if (unpacked == NULL)
		return UINT64_MAX;
	uint64_t size = lz4_unpack((const unsigned char *)payload, entry->packed_size, unpacked, entry->unpacked_size);
	uint64_t sum = payload_variables(entry->kind, (const char *)unpacked, size);
	free(unpacked);
	return sum;
}

/* One fatbin; *used is its size with header, 0 where it is none. */
static uint64_t one_fatbin(const char *data, uint64_t size, uint64_t *used)
{
	uint32_t magic;
	uint16_t header;
	uint64_t rest, most = 0;
	*used = 0;
	if (size < 16)
		return 0;
	memcpy(&magic, data, sizeof(magic));
	memcpy(&header, data + 6, sizeof(header));
	memcpy(&rest, data + 8, sizeof(rest));
	if (magic != FATBIN_MAGIC || header < 16 || header > size || rest > size - header || rest > SMALL)
		return 0;
	*used = header + rest;
	for (uint64_t at = header; *used - at >= sizeof(struct fatbin_entry);) {
		struct fatbin_entry entry;
		memcpy(&entry, data + at, sizeof(entry));
		if (entry.header_size < sizeof(entry) || entry.header_size > *used - at ||
		    entry.payload_size > *used - at - entry.header_size)
			break;
		uint64_t sum = entry_variables(&entry, data + at + entry.header_size);
		most = sum > most ? sum : most;
		at += entry.header_size + entry.payload_size;
	}
	return most;
}

/* Several, each padded to 8 bytes, where a section of a host object holds them. */
static uint64_t fatbin_variables(const char *data, uint64_t size)
{
	uint64_t sum = 0, used;
	do {
		sum = add(sum, one_fatbin(data, size, &used));
		used = (used + 7) & ~UINT64_C(7);
		data += used;
		size = used < size ? size - used : 0;
	} while (used != 0 && size >= 16);
	return sum;
}

/* ---- any --------------------------------------------------------------------------------------------------------- */

/* Bytes from the beginning of an ELF file to the end of what its headers speak of. */
static uint64_t elf_size(const char *data)
{
	Elf64_Ehdr header;
	Elf64_Shdr section;
	memcpy(&header, data, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(section) || header.e_shoff > SMALL)
		return 0;
	uint64_t size = header.e_shoff + (uint64_t)header.e_shnum * sizeof(section);
	for (unsigned i = 0; i < header.e_shnum; i++) {
		memcpy(&section, data + header.e_shoff + i * sizeof(section), sizeof(section));
		if (section.sh_type != SHT_NOBITS && section.sh_offset < SMALL && section.sh_size < SMALL &&
		    section.sh_offset + section.sh_size > size)
			size = section.sh_offset + section.sh_size;
	}
	return size;
}

uint64_t vgpu_image_variables(const void *image, size_t size)
{
	uint32_t magic = 0;
	const char *data = image, *inside;
	uint64_t used;
	if (data == NULL)
		return 0;
	for (unsigned i = 0; i < sizeof(magic) && i < size && (i == 0 || data[i - 1] != '\0'); i++)
		magic |= (uint32_t)(unsigned char)data[i] << 8 * i;
	if (magic == WRAPPER_MAGIC && size == SIZE_MAX) {
		memcpy(&inside, data + 8, sizeof(inside));
		return vgpu_image_variables(inside, SIZE_MAX);
	}
	if (magic == FATBIN_MAGIC)
		return one_fatbin(data, size, &used);
	if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
		return elf_variables(data, size == SIZE_MAX ? elf_size(data) : size);
	return vgpu_ptx_variables(data, size);
}

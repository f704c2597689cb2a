/* module_elf.c: reads cubins (ELF images for the device), and host objects that carry a fatbin in a section.
 *
 * Kernels are the function symbols marked as entries; their parameters stand in `.nv.info.<kernel>` as KPARAM_INFO
 * records, registers in the upper byte of the text section's sh_info. Found by looking at what ptxas writes; the ABI
 * version byte says where e_flags keeps the SM (7: low byte, 8: next one). Called by module_image.c and link.c. What
 * can go wrong: offsets that point outside (CUDA_ERROR_INVALID_IMAGE), another SM's code
 * (CUDA_ERROR_NO_BINARY_FOR_GPU).
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "module_image.h"

#ifndef EM_CUDA
#define EM_CUDA 190
#endif
#define STO_CUDA_ENTRY     0x10
#define STO_CUDA_MANAGED   0x04
#define SHARED_RESERVED    1024
#define EIFMT_SVAL         4
#define EIATTR_MAX_THREADS 0x05
#define EIATTR_FRAME_SIZE  0x11
#define EIATTR_KPARAM_INFO 0x17
#define EIATTR_REGCOUNT    0x2f

struct elf {
	const unsigned char *data;
	size_t size;
	Elf64_Ehdr header;
	const char *names; /* section names */
	size_t names_size;
	struct sim_image *image;
	struct sim_jit_log *log;
};

static bool get(const struct elf *elf, uint64_t offset, void *to, size_t n)
{
	if (n > elf->size || offset > elf->size - n)
		return false;
	memcpy(to, elf->data + offset, n);
	return true;
}

static bool section(const struct elf *elf, unsigned index, Elf64_Shdr *out)
{
	return index < elf->header.e_shnum &&
	       get(elf, elf->header.e_shoff + (uint64_t)index * sizeof(*out), out, sizeof(*out)) &&
	       (out->sh_type == SHT_NOBITS ||
	        (out->sh_offset <= elf->size && out->sh_size <= elf->size - out->sh_offset));
}

/* A string of a string table; "" where there is none or it has no end. */
static const char *string(const char *table, size_t size, uint64_t offset)
{
	if (!table || offset >= size || !memchr(table + offset, 0, size - offset))
		return "";
	return table + offset;
}

static const char *section_name(const struct elf *elf, const Elf64_Shdr *s)
{
	return string(elf->names, elf->names_size, s->sh_name);
}

static bool open_elf(struct elf *elf)
{
	Elf64_Shdr names;
	if (!get(elf, 0, &elf->header, sizeof(elf->header)) || memcmp(elf->header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    elf->header.e_ident[EI_CLASS] != ELFCLASS64 || elf->header.e_shentsize != sizeof(Elf64_Shdr) ||
	    elf->header.e_shoff > elf->size || !section(elf, elf->header.e_shstrndx, &names) ||
	    names.sh_type != SHT_STRTAB)
		return false;
	elf->names = (const char *)elf->data + names.sh_offset;
	elf->names_size = names.sh_size;
	return true;
}

size_t sim_elf_size(const void *data)
{
	Elf64_Ehdr header;
	memcpy(&header, data, sizeof(header));
	if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > (UINT64_C(1) << 40))
		return 0;
	uint64_t size = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
	for (unsigned i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr s;
		memcpy(&s, (const char *)data + header.e_shoff + i * sizeof(s), sizeof(s));
		if (s.sh_type != SHT_NOBITS && s.sh_offset < (UINT64_C(1) << 40) && s.sh_size < (UINT64_C(1) << 40) &&
		    s.sh_offset + s.sh_size > size)
			size = s.sh_offset + s.sh_size;
	}
	return size;
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static bool read_variable(struct elf *elf, const Elf64_Sym *symbol, const char *name)
{
	Elf64_Shdr home;
	if (!section(elf, symbol->st_shndx, &home))
		return false;
	const char *place = section_name(elf, &home);
	bool global = !strcmp(place, ".nv.global") || !strcmp(place, ".nv.global.init");
	bool constant = !strcmp(place, ".nv.constant3");
	if (!global && !constant)
		return true;
	if (symbol->st_value > home.sh_size || symbol->st_size > home.sh_size - symbol->st_value)
		return false;
	struct sim_variable *variable = sim_image_variable(elf->image, name, strlen(name));
	if (!variable)
		return false;
	variable->size = symbol->st_size;
	variable->align = home.sh_addralign ? home.sh_addralign : 1;
	variable->constant = constant;
	variable->managed = symbol->st_other & STO_CUDA_MANAGED;
	variable->external = false;
	if (home.sh_type == SHT_NOBITS || !symbol->st_size)
		return true;
	free(variable->init);
	variable->init = malloc(symbol->st_size);
	variable->init_size = variable->init ? symbol->st_size : 0;
	return variable->init && get(elf, home.sh_offset + symbol->st_value, variable->init, symbol->st_size);
}

static bool read_function(struct elf *elf, const Elf64_Sym *symbol, const char *name)
{
	Elf64_Shdr text;
	if (symbol->st_shndx == SHN_UNDEF)
		return sim_image_function(elf->image, name, strlen(name), false);
	if (!section(elf, symbol->st_shndx, &text))
		return false;
	if (!(symbol->st_other & STO_CUDA_ENTRY))
		return sim_image_function(elf->image, name, strlen(name), true);
	struct sim_kernel_image *kernel = sim_image_kernel(elf->image, name, strlen(name));
	if (!kernel)
		return false;
	if (text.sh_info >> 24)
		kernel->registers = text.sh_info >> 24;
	return true;
}

static bool symbol_at(struct elf *elf, const Elf64_Shdr *table, uint64_t index, Elf64_Sym *symbol, const char **name)
{
	Elf64_Shdr strings;
	if (index >= table->sh_size / sizeof(*symbol) || !section(elf, table->sh_link, &strings) ||
	    strings.sh_type == SHT_NOBITS ||
	    !get(elf, table->sh_offset + index * sizeof(*symbol), symbol, sizeof(*symbol)))
		return false;
	*name = string((const char *)elf->data + strings.sh_offset, strings.sh_size, symbol->st_name);
	return true;
}

static bool read_symbols(struct elf *elf, const Elf64_Shdr *table)
{
	for (uint64_t i = 1; i < table->sh_size / sizeof(Elf64_Sym); i++) {
		Elf64_Sym symbol;
		const char *name;
		if (!symbol_at(elf, table, i, &symbol, &name))
			return false;
		unsigned type = ELF64_ST_TYPE(symbol.st_info);
		if (!*name || *name == '.')
			continue;
		if (type == STT_FUNC && !read_function(elf, &symbol, name))
			return false;
		if (type == STT_OBJECT && symbol.st_shndx != SHN_UNDEF && !read_variable(elf, &symbol, name))
			return false;
	}
	return true;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static struct sim_kernel_image *find_kernel(const struct elf *elf, const char *name)
{
	for (unsigned i = 0; i < elf->image->nkernels; i++)
		if (!strcmp(elf->image->kernels[i].name, name))
			return &elf->image->kernels[i];
	return NULL;
}

/* One record of `.nv.info.<kernel>`. KPARAM_INFO: u32 index, u16 ordinal, u16 offset, u32 with the size from bit 18
 * on. */
static bool kernel_record(struct sim_kernel_image *kernel, unsigned attribute, const unsigned char *value, size_t size)
{
	uint32_t word[3];
	if (size < sizeof(word))
		return true;
	memcpy(word, value, sizeof(word));
	if (attribute == EIATTR_KPARAM_INFO)
		return sim_kernel_param(kernel, word[1] & 0xffff, word[1] >> 16, word[2] >> 18);
	if (attribute == EIATTR_MAX_THREADS && word[0] < 65536 && word[1] < 65536 && word[2] < 65536)
		kernel->max_threads = word[0] * word[1] * word[2];
	return true;
}

/* One record of `.nv.info`: u32 symbol, u32 value. */
static void image_record(struct elf *elf, const Elf64_Shdr *info, unsigned attribute, const unsigned char *value,
                         size_t size)
{
	uint32_t word[2];
	Elf64_Shdr table;
	Elf64_Sym symbol;
	const char *name;
	if (size < sizeof(word) || (attribute != EIATTR_REGCOUNT && attribute != EIATTR_FRAME_SIZE))
		return;
	memcpy(word, value, sizeof(word));
	if (!section(elf, info->sh_link, &table) || table.sh_type != SHT_SYMTAB ||
	    !symbol_at(elf, &table, word[0], &symbol, &name))
		return;
	struct sim_kernel_image *kernel = find_kernel(elf, name);
	if (kernel && attribute == EIATTR_REGCOUNT)
		kernel->registers = word[1];
	else if (kernel)
		kernel->local = word[1];
}

/* Records: u8 format, u8 attribute, u16 value; with format SVAL the value is the number of bytes that follow. */
static bool read_info(struct elf *elf, const Elf64_Shdr *info, struct sim_kernel_image *kernel)
{
	uint64_t at = 0;
	while (at + 4 <= info->sh_size) {
		const unsigned char *record = elf->data + info->sh_offset + at;
		uint64_t size = record[0] == EIFMT_SVAL ? record[2] | (unsigned)record[3] << 8 : 0;
		at += 4;
		if (size > info->sh_size - at)
			return false;
		if (size && kernel && !kernel_record(kernel, record[1], record + 4, size))
			return false;
		if (size && !kernel)
			image_record(elf, info, record[1], record + 4, size);
		at += size;
	}
	return true;
}

static bool read_section(struct elf *elf, const Elf64_Shdr *s)
{
	const char *name = section_name(elf, s);
	struct sim_kernel_image *kernel;
	if (!strcmp(name, ".nv.constant3"))
		elf->image->constants += s->sh_size;
	if (!strncmp(name, ".nv.shared.", 11) && (kernel = find_kernel(elf, name + 11))) {
		/* Since sm_90 the section begins with what the system reserves, which programs are not told of. */
		uint64_t reserved = elf->image->sm >= 90 && s->sh_size >= SHARED_RESERVED ? SHARED_RESERVED : 0;
		kernel->shared = s->sh_size < UINT32_MAX ? (uint32_t)(s->sh_size - reserved) : UINT32_MAX;
	}
	if (strncmp(name, ".nv.info", 8) != 0 || s->sh_type == SHT_NOBITS)
		return true;
	if (!name[8])
		return read_info(elf, s, NULL);
	kernel = find_kernel(elf, name + 9);
	return !kernel || read_info(elf, s, kernel);
}

/* Code runs on devices of its own major version and at least its minor one. */
static CUresult check_target(struct elf *elf, int cc)
{
	unsigned abi = elf->header.e_ident[EI_ABIVERSION];
	int sm = (int)(abi >= 8 ? elf->header.e_flags >> 8 & 0xff : elf->header.e_flags & 0xff);
	if (sm / 10 != cc / 10 || sm > cc) {
		sim_jit_say(elf->log, "error   : the cubin is for sm_%d, the device is sm_%d", sm, cc);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	elf->image->sm = sm > elf->image->sm ? sm : elf->image->sm;
	return CUDA_SUCCESS;
}

static CUresult read_cubin(struct elf *elf, int cc)
{
	CUresult error = check_target(elf, cc);
	if (error != CUDA_SUCCESS)
		return error;
	Elf64_Shdr s;
	bool good = true;
	for (unsigned i = 1; good && i < elf->header.e_shnum; i++)
		good = section(elf, i, &s) && (s.sh_type != SHT_SYMTAB || read_symbols(elf, &s));
	for (unsigned i = 1; good && i < elf->header.e_shnum; i++)
		good = section(elf, i, &s) && read_section(elf, &s);
	if (!good)
		sim_jit_say(elf->log,
		            "error   : the cubin is damaged: a section or symbol lies outside of its %zu bytes",
		            elf->size);
	return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

/* A host object: its fatbins, which the linker would have put into one section. */
static CUresult read_object(struct elf *elf, int cc)
{
	CUresult error = CUDA_ERROR_NO_BINARY_FOR_GPU;
	Elf64_Shdr s;
	for (unsigned i = 1; i < elf->header.e_shnum; i++) {
		if (!section(elf, i, &s) || s.sh_type == SHT_NOBITS)
			continue;
		const char *name = section_name(elf, &s);
		if (strcmp(name, ".nv_fatbin") != 0 && strcmp(name, "__nv_relfatbin") != 0)
			continue;
		error = sim_image_read_fatbin(elf->image, elf->data + s.sh_offset, s.sh_size, cc, elf->log);
		if (error != CUDA_SUCCESS)
			return error;
	}
	return error;
}

CUresult sim_image_read_elf(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log)
{
	struct elf elf = {.data = data, .size = size, .image = image, .log = log};
	if (!open_elf(&elf)) {
		sim_jit_say(log, "error   : not a 64-bit ELF image, or one whose headers point outside of it");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	return elf.header.e_machine == EM_CUDA ? read_cubin(&elf, cc) : read_object(&elf, cc);
}

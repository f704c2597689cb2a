/* module_write.c: an image as a cubin: what cuLinkComplete hands to the program, and module_elf.c reads back.
 *
 * The same sections as ptxas makes, as far as module_elf.c knows them: a text section (empty but for its name and its
 * registers) and KPARAM_INFO records per kernel, one symbol table, variables in .nv.global, .nv.global.init and
 * .nv.constant3. Called by link.c. What can go wrong: no memory (NULL).
 */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module_image.h"

#define CUBIN_MACHINE   190 /* EM_CUDA */
#define CUBIN_OSABI     0x41
#define CUBIN_ABI       8
#define ENTRY           0x10
#define MANAGED         0x04
#define SHARED_RESERVED 1024 /* since sm_90 */
#define NV_INFO         (SHT_LOPROC + 0)

struct bytes {
	unsigned char *data;
	size_t size, room;
	bool failed;
};

static size_t put(struct bytes *b, const void *data, size_t n)
{
	size_t at = b->size;
	if (n > b->room - b->size) {
		size_t room = 2 * (b->size + n) + 256;
		unsigned char *all = b->failed ? NULL : realloc(b->data, room);
		if (!all) {
			b->failed = true;
			return 0;
		}
		b->data = all;
		b->room = room;
	}
	if (n && data)
		memcpy(b->data + b->size, data, n);
	else if (n)
		memset(b->data + b->size, 0, n);
	b->size += n;
	return at;
}

static void align(struct bytes *b, size_t to)
{
	put(b, NULL, (to - b->size % to) % to);
}

static uint32_t put_string(struct bytes *b, const char *prefix, const char *text)
{
	size_t at = put(b, prefix, strlen(prefix));
	put(b, text, strlen(text) + 1);
	return (uint32_t)at;
}

struct writer {
	struct bytes file, sections, names, strings, symbols;
	unsigned nsections;
};

/* A section with its content, which is put at the end of the file; NOBITS takes no room. */
static unsigned add_section(struct writer *w, Elf64_Shdr s, const char *prefix, const char *name, const void *data)
{
	s.sh_name = put_string(&w->names, prefix, name);
	s.sh_addralign = s.sh_addralign ? s.sh_addralign : 1;
	if (s.sh_type != SHT_NOBITS) {
		align(&w->file, 16);
		s.sh_offset = put(&w->file, data, s.sh_size);
	}
	put(&w->sections, &s, sizeof(s));
	return w->nsections++;
}

static void add_symbol(struct writer *w, const char *name, Elf64_Sym symbol)
{
	symbol.st_name = put_string(&w->strings, "", name);
	put(&w->symbols, &symbol, sizeof(symbol));
}

static void add_kernel(struct writer *w, const struct sim_kernel_image *kernel, int cc)
{
	static const unsigned char no_code[16];
	Elf64_Shdr text = {.sh_type = SHT_PROGBITS,
	                   .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
	                   .sh_size = sizeof(no_code),
	                   .sh_info = kernel->registers << 24,
	                   .sh_addralign = 128};
	unsigned home = add_section(w, text, ".text.", kernel->name, no_code);
	add_symbol(w, kernel->name,
	           (Elf64_Sym){.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
	                       .st_other = ENTRY,
	                       .st_shndx = (uint16_t)home,
	                       .st_size = sizeof(no_code)});
	struct bytes info = {0};
	for (unsigned i = 0; i < kernel->nparams; i++) {
		uint32_t record[4] = {0x000c1704, 0, i | kernel->params[i].offset << 16, kernel->params[i].size << 18};
		put(&info, record, sizeof(record));
	}
	if (kernel->max_threads) {
		uint32_t record[4] = {0x000c0504, kernel->max_threads, 1, 1};
		put(&info, record, sizeof(record));
	}
	w->file.failed |= info.failed;
	add_section(w, (Elf64_Shdr){.sh_type = NV_INFO, .sh_size = info.size, .sh_info = home, .sh_addralign = 4},
	            ".nv.info.", kernel->name, info.data);
	free(info.data);
	if (kernel->shared)
		add_section(w,
		            (Elf64_Shdr){.sh_type = SHT_NOBITS,
		                         .sh_flags = SHF_ALLOC | SHF_WRITE,
		                         .sh_info = home,
		                         .sh_size = kernel->shared + (cc >= 90 ? SHARED_RESERVED : 0)},
		            ".nv.shared.", kernel->name, NULL);
}

enum home { IN_ZERO, IN_INIT, IN_CONSTANT };

static enum home home_of(const struct sim_variable *variable)
{
	return variable->constant ? IN_CONSTANT : variable->init_size ? IN_INIT : IN_ZERO;
}

/* All variables of one home, laid out one after the other. */
static void add_variables(struct writer *w, const struct sim_image *image, enum home home, const char *name)
{
	struct bytes content = {0};
	uint64_t size = 0, widest = 1;
	unsigned section = w->nsections;
	for (unsigned i = 0; i < image->nvariables; i++) {
		const struct sim_variable *variable = &image->variables[i];
		if (variable->external || home_of(variable) != home)
			continue;
		uint64_t a = variable->align ? variable->align : 1;
		size = (size + a - 1) / a * a;
		widest = a > widest ? a : widest;
		add_symbol(w, variable->name,
		           (Elf64_Sym){.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
		                       .st_other = variable->managed ? MANAGED : 0,
		                       .st_shndx = (uint16_t)section,
		                       .st_value = size,
		                       .st_size = variable->size});
		if (home != IN_ZERO) {
			put(&content, NULL, size - content.size);
			put(&content, variable->init, variable->init_size);
			put(&content, NULL, variable->size - variable->init_size);
		}
		size += variable->size;
	}
	w->file.failed |= content.failed;
	Elf64_Shdr s = {.sh_type = home == IN_ZERO ? SHT_NOBITS : SHT_PROGBITS,
	                .sh_flags = SHF_ALLOC | SHF_WRITE,
	                .sh_size = size,
	                .sh_addralign = widest};
	if (size)
		add_section(w, s, "", name, content.data);
	free(content.data);
}

static void finish(struct writer *w, int cc)
{
	static const char none[1];
	unsigned strtab = w->nsections + 1;
	add_section(w,
	            (Elf64_Shdr){.sh_type = SHT_SYMTAB,
	                         .sh_size = w->symbols.size,
	                         .sh_link = strtab,
	                         .sh_info = 1,
	                         .sh_entsize = sizeof(Elf64_Sym),
	                         .sh_addralign = 8},
	            "", ".symtab", w->symbols.data);
	put(&w->strings, none, 1);
	add_section(w, (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_size = w->strings.size}, "", ".strtab", w->strings.data);
	unsigned names = w->nsections;
	/* The names are complete only when the last section has put in its own. */
	size_t own = w->names.size + strlen(".shstrtab") + 1;
	Elf64_Shdr s = {.sh_type = SHT_STRTAB, .sh_size = own, .sh_addralign = 1, .sh_offset = w->file.size};
	s.sh_name = put_string(&w->names, "", ".shstrtab");
	put(&w->file, w->names.data, own);
	put(&w->sections, &s, sizeof(s));
	w->nsections++;
	align(&w->file, 8);
	Elf64_Ehdr header = {.e_type = ET_EXEC,
	                     .e_machine = CUBIN_MACHINE,
	                     .e_version = 1,
	                     .e_flags = (uint32_t)cc << 8,
	                     .e_ehsize = sizeof(header),
	                     .e_shentsize = sizeof(Elf64_Shdr),
	                     .e_shoff = w->file.size,
	                     .e_shnum = (uint16_t)w->nsections,
	                     .e_shstrndx = (uint16_t)names};
	memcpy(header.e_ident, ELFMAG, SELFMAG);
	header.e_ident[EI_CLASS] = ELFCLASS64;
	header.e_ident[EI_DATA] = ELFDATA2LSB;
	header.e_ident[EI_VERSION] = EV_CURRENT;
	header.e_ident[EI_OSABI] = CUBIN_OSABI;
	header.e_ident[EI_ABIVERSION] = CUBIN_ABI;
	put(&w->file, w->sections.data, w->sections.size);
	if (!w->file.failed)
		memcpy(w->file.data, &header, sizeof(header));
}

void *sim_image_write_elf(const struct sim_image *image, int cc, size_t *size)
{
	struct writer w = {.nsections = 0};
	put(&w.file, NULL, sizeof(Elf64_Ehdr));
	put(&w.names, NULL, 1);
	put(&w.strings, NULL, 1);
	put(&w.symbols, NULL, sizeof(Elf64_Sym));
	put(&w.sections, NULL, sizeof(Elf64_Shdr));
	w.nsections = 1;
	/* Section numbers are 16 bits wide: three sections per kernel. */
	for (unsigned i = 0; i < image->nkernels && i < 20000; i++)
		add_kernel(&w, &image->kernels[i], cc);
	add_variables(&w, image, IN_ZERO, ".nv.global");
	add_variables(&w, image, IN_INIT, ".nv.global.init");
	add_variables(&w, image, IN_CONSTANT, ".nv.constant3");
	finish(&w, cc);
	bool failed = w.file.failed || w.sections.failed || w.names.failed || w.strings.failed || w.symbols.failed;
	free(w.sections.data);
	free(w.names.data);
	free(w.strings.data);
	free(w.symbols.data);
	if (failed) {
		free(w.file.data);
		return NULL;
	}
	*size = w.file.size;
	return w.file.data;
}

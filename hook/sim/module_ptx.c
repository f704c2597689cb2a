/* module_ptx.c: reads PTX text: kernels with their parameters, variables, and what a link must resolve.
 *
 * A reader for the outside of PTX: directives at module level are understood, the bodies of functions are only searched
 * for shared variables and for the end. Everything else is a syntax error at a line, as from an assembler. Grammar:
 * PTX ISA, "Directives". What can go wrong: CUDA_ERROR_INVALID_PTX (syntax, or a target newer than the device),
 * CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "module_image.h"

struct reader {
	const char *at, *end;
	const char *token; /* the current one: [token, at) */
	size_t length;
	int line;
	struct sim_image *image;
	struct sim_jit_log *log;
	const char *error; /* first error: what was expected */
	unsigned align;    /* of the declaration being read */
};

static bool is_name(int c)
{
	return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.' || c == '@';
}

static void skip_blank(struct reader *r)
{
	while (r->at < r->end) {
		if (*r->at == '\n')
			r->line++;
		if (isspace((unsigned char)*r->at)) {
			r->at++;
		} else if (*r->at == '/' && r->end - r->at > 1 && r->at[1] == '/') {
			while (r->at < r->end && *r->at != '\n')
				r->at++;
		} else if (*r->at == '/' && r->end - r->at > 1 && r->at[1] == '*') {
			r->at += 2;
			while (r->at < r->end && !(*r->at == '*' && r->end - r->at > 1 && r->at[1] == '/'))
				r->line += *r->at++ == '\n';
			r->at = r->end - r->at > 1 ? r->at + 2 : r->end;
		} else {
			return;
		}
	}
}

/* Next token: a name or directive or number (all one class), a string, or one character. Length 0 at the end. */
static void next(struct reader *r)
{
	skip_blank(r);
	r->token = r->at;
	if (r->at < r->end && *r->at == '"') {
		r->at++;
		while (r->at < r->end && *r->at != '"') {
			r->line += *r->at == '\n';
			r->at += *r->at == '\\' && r->end - r->at > 1 ? 2 : 1;
		}
		r->at += r->at < r->end;
	} else if (r->at < r->end && is_name((unsigned char)*r->at)) {
		while (r->at < r->end && is_name((unsigned char)*r->at))
			r->at++;
	} else if (r->at < r->end) {
		r->at++;
	}
	r->length = (size_t)(r->at - r->token);
}

static bool is(const struct reader *r, const char *text)
{
	return r->length == strlen(text) && !memcmp(r->token, text, r->length);
}

static bool starts(const struct reader *r, const char *text)
{
	return r->length >= strlen(text) && !memcmp(r->token, text, strlen(text));
}

static bool fail(struct reader *r, const char *expected)
{
	if (!r->error)
		r->error = expected;
	return false;
}

static bool take(struct reader *r, const char *text)
{
	if (!is(r, text))
		return false;
	next(r);
	return true;
}

static bool take_number(struct reader *r, uint64_t *value)
{
	char digits[72];
	if (!r->length || r->length >= sizeof(digits) || !isdigit((unsigned char)*r->token))
		return fail(r, "a number");
	memcpy(digits, r->token, r->length);
	digits[r->length] = '\0';
	char *end;
	bool binary = digits[0] == '0' && (digits[1] == 'b' || digits[1] == 'B');
	*value = strtoull(binary ? digits + 2 : digits, &end, binary ? 2 : 0);
	if (*end == 'U')
		end++;
	if (*end)
		return fail(r, "a number");
	next(r);
	return true;
}

/* Reads over a bracketed group that begins at the current token. */
static bool skip_group(struct reader *r)
{
	int depth = 0;
	do {
		if (is(r, "(") || is(r, "{") || is(r, "["))
			depth++;
		else if (is(r, ")") || is(r, "}") || is(r, "]"))
			depth--;
		else if (!r->length)
			return fail(r, "a closing bracket");
		next(r);
	} while (depth > 0);
	return true;
}

static bool skip_statement(struct reader *r)
{
	while (r->length && !is(r, ";"))
		next(r);
	return take(r, ";") || fail(r, "';'");
}

/* ---- declarations ------------------------------------------------------------------------------------------------ */

struct declaration {
	const char *name;
	size_t length;
	unsigned scalar;   /* bytes */
	unsigned element;  /* bytes: a scalar, or a vector of them */
	uint64_t size;     /* bytes, all elements; 0: an array without a size */
	uint64_t align;
	bool managed;
	bool texture, surface;
};

static unsigned type_size(const struct reader *r)
{
	static const struct {
		const char *name;
		unsigned size;
	} types[] = {{".b8", 1},    {".u8", 1},     {".s8", 1},   {".b16", 2},    {".u16", 2},        {".s16", 2},
	             {".f16", 2},   {".bf16", 2},   {".b32", 4},  {".u32", 4},    {".s32", 4},        {".f32", 4},
	             {".f16x2", 4}, {".bf16x2", 4}, {".tf32", 4}, {".b64", 8},    {".u64", 8},        {".s64", 8},
	             {".f64", 8},   {".b128", 16},  {".pred", 1}, {".texref", 8}, {".samplerref", 8}, {".surfref", 8},
	             {".e4m3", 1},  {".e5m2", 1}};
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (is(r, types[i].name))
			return types[i].size;
	return 0;
}

/* Alignments are powers of two. */
static uint64_t align_up(uint64_t offset, uint64_t align)
{
	return (offset + align - 1) & ~(align - 1);
}

/* Dimensions after a name: `[4][8]`, `[]`. */
static bool read_dimensions(struct reader *r, struct declaration *d)
{
	while (take(r, "[")) {
		uint64_t n = 0;
		if (!is(r, "]") && !take_number(r, &n))
			return false;
		if (!take(r, "]"))
			return fail(r, "']'");
		if (n > (UINT64_C(1) << 48) || d->size > (UINT64_C(1) << 48) / (n ? n : 1))
			return fail(r, "a smaller array");
		d->size *= n;
	}
	return true;
}

/* From after the state space to before `=`, `,`, `;` or `)`. */
static bool read_declaration(struct reader *r, struct declaration *d)
{
	unsigned vector = 1;
	uint64_t value;
	*d = (struct declaration){.align = 0};
	for (;;) {
		if (take(r, ".align")) {
			if (!take_number(r, &d->align) || !d->align || (d->align & (d->align - 1)) || d->align > 65536)
				return fail(r, "an alignment");
		} else if (is(r, ".v2") || is(r, ".v4") || is(r, ".v8")) {
			vector = (unsigned)(r->token[2] - '0');
			next(r);
		} else if (take(r, ".attribute")) {
			d->managed |= r->length == 1 && r->end - r->at > 8 && !memcmp(r->at, ".managed", 8);
			if (!skip_group(r))
				return false;
		} else if (take(r, ".ptr")) {
			if (is(r, ".global") || is(r, ".shared") || is(r, ".const") || is(r, ".local") ||
			    is(r, ".param"))
				next(r);
			if (take(r, ".align") && !take_number(r, &value))
				return false;
		} else if (!d->element && type_size(r)) {
			d->scalar = type_size(r);
			d->element = d->scalar * vector;
			d->texture = is(r, ".texref");
			d->surface = is(r, ".surfref");
			next(r);
		} else {
			break;
		}
	}
	if (!d->element)
		return fail(r, "a type");
	if (!r->length || !is_name((unsigned char)*r->token) || isdigit((unsigned char)*r->token) || *r->token == '.')
		return fail(r, "a name");
	d->name = r->token;
	d->length = r->length;
	d->size = d->element;
	if (!d->align)
		d->align = d->element;
	next(r);
	return read_dimensions(r, d);
}

/* One scalar of an initializer as the bytes it stands for; addresses of other symbols are left zero. */
static bool read_scalar(struct reader *r, uint64_t *bits, unsigned size)
{
	*bits = 0;
	bool negative = take(r, "-");
	if (starts(r, "0f") || starts(r, "0F") || starts(r, "0d") || starts(r, "0D")) {
		char digits[20] = "";
		memcpy(digits, r->token + 2, r->length - 2 < 16 ? r->length - 2 : 16);
		*bits = strtoull(digits, NULL, 16);
		next(r);
	} else if (r->length && isdigit((unsigned char)*r->token) && memchr(r->token, '.', r->length)) {
		double wide = strtod(r->token, NULL); /* the text goes on with a character that ends a number */
		float narrow = (float)wide;
		if (size == 4) {
			uint32_t half;
			memcpy(&half, &narrow, sizeof(half));
			*bits = half;
		} else {
			memcpy(bits, &wide, sizeof(wide));
		}
		next(r);
	} else if (r->length && isdigit((unsigned char)*r->token)) {
		if (!take_number(r, bits))
			return false;
	} else {
		next(r); /* generic(name), name, name + offset, mask(...) */
		while (r->length && !is(r, ",") && !is(r, "}") && !is(r, ";"))
			if (is(r, "(") ? !skip_group(r) : (next(r), false))
				return false;
	}
	if (negative)
		*bits = -*bits;
	return true;
}

static bool read_initializer(struct reader *r, const struct declaration *d, struct sim_variable *variable)
{
	uint64_t used = 0, capacity = 0;
	int depth = 0;
	do {
		if (take(r, "{")) {
			depth++;
			continue;
		}
		if (take(r, "}")) {
			depth--;
			continue;
		}
		if (depth > 0 && take(r, ","))
			continue;
		uint64_t bits;
		if (!r->length || !read_scalar(r, &bits, d->scalar))
			return fail(r, "an initializer");
		unsigned n = d->scalar < 8 ? d->scalar : 8;
		if (used + d->scalar > capacity) {
			capacity = capacity ? 2 * capacity : 64 * (uint64_t)d->scalar;
			unsigned char *all = realloc(variable->init, capacity);
			if (!all)
				return fail(r, "more memory");
			variable->init = all;
		}
		memset(variable->init + used, 0, d->scalar);
		memcpy(variable->init + used, &bits, n);
		used += d->scalar;
	} while (depth > 0);
	if (!variable->size)
		variable->size = used;
	if (used > variable->size)
		return fail(r, "fewer initial values than the variable has elements");
	variable->init_size = used;
	return true;
}

/* After `.global` or `.const`: one or more declarations and the semicolon. */
static bool read_variables(struct reader *r, bool constant, bool external)
{
	struct declaration d;
	if (!read_declaration(r, &d))
		return false;
	struct sim_variable *variable = sim_image_variable(r->image, d.name, d.length);
	if (!variable)
		return fail(r, "more memory");
	if (!external && !variable->external)
		return fail(r, "a variable that is not defined already");
	if (!external || variable->external) {
		variable->size = d.size;
		variable->align = d.align;
		variable->constant = constant;
		variable->managed = d.managed;
		variable->texture = d.texture;
		variable->surface = d.surface;
		variable->external = external;
	}
	if (take(r, "=") && !read_initializer(r, &d, variable))
		return false;
	if (constant && !external)
		r->image->constants += variable->size;
	return take(r, ";") || fail(r, "';'");
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

static bool read_params(struct reader *r, struct sim_kernel_image *kernel)
{
	uint64_t offset = 0;
	unsigned n = 0;
	while (!take(r, ")")) {
		struct declaration d;
		if (n && !take(r, ","))
			return fail(r, "',' or ')'");
		if (!take(r, ".param"))
			return fail(r, "'.param'");
		if (!read_declaration(r, &d))
			return false;
		offset = align_up(offset, d.align);
		if (d.size > SIM_KERNEL_PARAM_BYTES || offset > SIM_KERNEL_PARAM_BYTES ||
		    !sim_kernel_param(kernel, n++, (uint32_t)offset, (uint32_t)d.size))
			return fail(r, "fewer or smaller parameters");
		offset += d.size;
	}
	return true;
}

/* Between the parameters and the body: launch bounds and the like. */
static bool read_bounds(struct reader *r, struct sim_kernel_image *kernel)
{
	while (r->length && *r->token == '.') {
		bool threads = is(r, ".maxntid") || is(r, ".reqntid");
		bool cluster = is(r, ".reqnctapercluster");
		bool registers = is(r, ".maxnreg");
		uint64_t n[3] = {1, 1, 1};
		next(r);
		for (int i = 0; r->length && isdigit((unsigned char)*r->token); i++) {
			if (!take_number(r, &n[i < 3 ? i : 2]))
				return false;
			if (!take(r, ","))
				break;
		}
		if (r->length && *r->token == '"')
			next(r);
		take(r, ";"); /* .pragma "..."; */
		if (threads && n[0] < 65536 && n[1] < 65536 && n[2] < 65536)
			kernel->max_threads = (uint32_t)(n[0] * n[1] * n[2]);
		if (registers)
			kernel->registers = (uint32_t)n[0];
		for (int i = 0; cluster && i < 3; i++)
			kernel->cluster[i] = (uint32_t)n[i];
	}
	return true;
}

/* A body: `kernel` is NULL for a device function. Statements must end before the closing brace. */
static bool read_body(struct reader *r, struct sim_kernel_image *kernel)
{
	int depth = 0;
	bool open = false; /* inside a statement */
	do {
		if (!r->length)
			return fail(r, "'}'");
		if (!open && kernel && is(r, ".shared")) {
			struct declaration d;
			next(r);
			if (!read_declaration(r, &d))
				return false;
			if (d.size < (UINT64_C(1) << 30) && kernel->shared < (1u << 30))
				kernel->shared = (uint32_t)(align_up(kernel->shared, d.align) + d.size);
			if (!is(r, ";"))
				return fail(r, "';'");
			continue;
		}
		if (is(r, "{")) {
			depth++;
		} else if (is(r, "}")) {
			if (open && depth == 1)
				return fail(r, "';' before '}'");
			depth--;
		} else {
			/* Labels end with a colon; .loc lines and the like with nothing at all. */
			bool directive = starts(r, ".loc") || starts(r, ".file") || starts(r, ".section");
			open = !(is(r, ";") || is(r, ":") || directive);
			while (directive && r->at < r->end && *r->at != '\n')
				r->at++;
		}
		if (depth > 0 || !is(r, "}"))
			next(r);
	} while (depth > 0);
	next(r);
	return true;
}

static bool read_entry(struct reader *r)
{
	if (!r->length || !is_name((unsigned char)*r->token) || *r->token == '.' || isdigit((unsigned char)*r->token))
		return fail(r, "the name of a kernel");
	unsigned before = r->image->nkernels;
	struct sim_kernel_image *kernel = sim_image_kernel(r->image, r->token, r->length);
	if (!kernel)
		return fail(r, "more memory");
	bool is_new = r->image->nkernels > before;
	next(r);
	struct sim_kernel_image again = {.name = kernel->name}; /* a declaration may come before the definition */
	if (!is_new) {
		free(kernel->params);
		*kernel = again;
		kernel->registers = 32;
	}
	if (take(r, "(") && !read_params(r, kernel))
		return false;
	if (!read_bounds(r, kernel))
		return false;
	if (take(r, ";"))
		return true;
	return is(r, "{") ? read_body(r, kernel) : fail(r, "'{' or ';'");
}

static bool read_function(struct reader *r)
{
	if (is(r, "(") && !skip_group(r)) /* return value */
		return false;
	if (!r->length || !is_name((unsigned char)*r->token) || *r->token == '.')
		return fail(r, "the name of a function");
	const char *name = r->token;
	size_t length = r->length;
	next(r);
	if (is(r, "(") && !skip_group(r))
		return false;
	struct sim_kernel_image ignored = {0};
	if (!read_bounds(r, &ignored))
		return false;
	bool defined = is(r, "{");
	if (!sim_image_function(r->image, name, length, defined))
		return fail(r, "more memory");
	if (defined)
		return read_body(r, NULL);
	return take(r, ";") || fail(r, "'{' or ';'");
}

/* ---- module level ------------------------------------------------------------------------------------------------ */

static bool read_directive(struct reader *r)
{
	bool external = false;
	while (is(r, ".visible") || is(r, ".extern") || is(r, ".weak") || is(r, ".common") || is(r, ".hidden")) {
		external |= is(r, ".extern");
		next(r);
	}
	if (take(r, ".entry"))
		return read_entry(r);
	if (take(r, ".func"))
		return read_function(r);
	if (take(r, ".global"))
		return read_variables(r, false, external);
	if (is(r, ".const") || starts(r, ".const[")) {
		next(r);
		if (is(r, "[") && !skip_group(r))
			return false;
		return read_variables(r, true, external);
	}
	if (is(r, ".shared") || is(r, ".local") || is(r, ".tex") || is(r, ".pragma") || is(r, ".alias") ||
	    is(r, ".address_size")) {
		if (!is(r, ".address_size"))
			return skip_statement(r);
		uint64_t bits;
		next(r);
		if (!take_number(r, &bits) || bits != 64)
			return fail(r, "64 as the address size");
		return true;
	}
	if (is(r, ".file") || is(r, ".loc")) {
		int line = r->line;
		do
			next(r);
		while (r->length && r->line == line);
		return true;
	}
	if (is(r, ".section")) {
		while (r->length && !is(r, "{"))
			next(r);
		return skip_group(r);
	}
	return fail(r, "a directive");
}

/* The PTX version of a CUDA release: 13.x has 9.x; the last of 12.x is 8.8. */
static int newest_version(void)
{
	uint32_t cuda = sim_machine ? sim_machine->cuda_version : 13050;
	return cuda >= 13000 ? 90 + (int)(cuda - 13000) / 10 : 88;
}

static CUresult read_header(struct reader *r, int cc)
{
	if (!take(r, ".version") || !r->length || !isdigit((unsigned char)*r->token)) {
		fail(r, "'.version'");
		return CUDA_ERROR_INVALID_PTX;
	}
	char *end;
	long major = strtol(r->token, &end, 10);
	long minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
	r->image->ptx_version = major < 100 && minor < 10 ? (int)(major * 10 + minor) : 1000;
	if (r->image->ptx_version > newest_version()) {
		sim_jit_say(r->log,
		            "ptxas application ptx input, line %d; fatal   : Unsupported .version %ld.%ld; current "
		            "version is '%d.%d'",
		            r->line, major, minor, newest_version() / 10, newest_version() % 10);
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	}
	next(r);
	if (!take(r, ".target") || !starts(r, "sm_")) {
		fail(r, "'.target sm_'");
		return CUDA_ERROR_INVALID_PTX;
	}
	int sm = (int)strtol(r->token + 3, NULL, 10);
	if (sm > cc) {
		sim_jit_say(r->log,
		            "ptxas fatal   : SM version specified by .target (sm_%d) is higher than that of the device "
		            "(sm_%d)",
		            sm, cc);
		return CUDA_ERROR_INVALID_PTX;
	}
	r->image->sm = sm > r->image->sm ? sm : r->image->sm;
	next(r);
	while (take(r, ","))
		next(r);
	return CUDA_SUCCESS;
}

CUresult sim_image_read_ptx(struct sim_image *image, const char *text, size_t size, int cc, struct sim_jit_log *log)
{
	/* The reader looks ahead with string functions: they need an end. */
	char *copy = malloc(size + 1);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, text, size);
	copy[size] = '\0';
	struct reader r = {.at = copy, .end = copy + size, .line = 1, .image = image, .log = log};
	next(&r);
	CUresult error = read_header(&r, cc);
	while (error == CUDA_SUCCESS && r.length)
		if (!read_directive(&r))
			error = CUDA_ERROR_INVALID_PTX;
	if (r.error) {
		sim_jit_say(log, "ptxas application ptx input, line %d; error   : syntax error at '%.*s': expected %s",
		            r.line, (int)(r.length < 40 ? r.length : 40), r.token, r.error);
		sim_jit_say(log, "ptxas fatal   : Ptx assembly aborted due to errors");
	}
	free(copy);
	return error;
}

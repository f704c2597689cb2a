/* memory_ranges.c: ordered trees of address ranges, and address room with its free ranges.
 *
 * Called by the other memory files under their mutex. A treap: random priorities keep it balanced, and each node knows
 * the largest range below it, so that the first range that is large enough is found without walking the others: 100,000
 * live blocks cost what ten do, give or take the depth. What can go wrong: no memory for a node; the caller is told.
 */
#include <stdlib.h>

#include "blocks.h"

static uint32_t next_priority(void)
{
	static uint32_t x = 2463534242u;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return x;
}

static void update(struct sim_range *node)
{
	uint64_t largest = node->size;

	if (node->left && node->left->largest > largest)
		largest = node->left->largest;
	if (node->right && node->right->largest > largest)
		largest = node->right->largest;
	node->largest = largest;
}

static void split(struct sim_range *root, uint64_t start, struct sim_range **below, struct sim_range **above)
{
	if (!root) {
		*below = *above = NULL;
	} else if (root->start < start) {
		split(root->right, start, &root->right, above);
		*below = root;
		update(root);
	} else {
		split(root->left, start, below, &root->left);
		*above = root;
		update(root);
	}
}

static struct sim_range *merge(struct sim_range *below, struct sim_range *above)
{
	if (!below || !above)
		return below ? below : above;
	if (below->priority > above->priority) {
		below->right = merge(below->right, above);
		update(below);
		return below;
	}
	above->left = merge(below, above->left);
	update(above);
	return above;
}

static void insert(struct sim_range **root, struct sim_range *range)
{
	if (!*root || range->priority > (*root)->priority) {
		split(*root, range->start, &range->left, &range->right);
		*root = range;
	} else {
		insert(range->start < (*root)->start ? &(*root)->left : &(*root)->right, range);
	}
	update(*root);
}

void sim_range_insert(struct sim_range **root, struct sim_range *range)
{
	range->priority = next_priority();
	range->left = range->right = NULL;
	insert(root, range);
}

void sim_range_remove(struct sim_range **root, struct sim_range *range)
{
	if (!*root)
		return;
	if (*root == range) {
		*root = merge(range->left, range->right);
		return;
	}
	sim_range_remove(range->start < (*root)->start ? &(*root)->left : &(*root)->right, range);
	update(*root);
}

struct sim_range *sim_range_floor(struct sim_range *root, uint64_t address)
{
	struct sim_range *found = NULL;

	while (root) {
		if (root->start <= address) {
			found = root;
			root = root->right;
		} else {
			root = root->left;
		}
	}
	return found;
}

struct sim_range *sim_range_above(struct sim_range *root, uint64_t address)
{
	struct sim_range *found = NULL;

	while (root) {
		if (root->start > address) {
			found = root;
			root = root->left;
		} else {
			root = root->right;
		}
	}
	return found;
}

struct sim_range *sim_range_fit(struct sim_range *root, uint64_t size)
{
	while (root && root->largest >= size) {
		if (root->left && root->left->largest >= size)
			root = root->left;
		else if (root->size >= size)
			return root;
		else
			root = root->right;
	}
	return NULL;
}

/* ---- spaces ----------------------------------------------------------------------------------------------------- */

bool sim_space_take(struct sim_space *space, uint64_t size, uint64_t *start)
{
	struct sim_range *range = sim_range_fit(space->free, size);

	if (!range)
		return false;
	*start = range->start;
	sim_range_remove(&space->free, range);
	range->start += size;
	range->size -= size;
	if (range->size)
		sim_range_insert(&space->free, range);
	else
		free(range);
	return true;
}

bool sim_space_give(struct sim_space *space, uint64_t start, uint64_t size)
{
	struct sim_range *below = start ? sim_range_floor(space->free, start - 1) : NULL;
	struct sim_range *above = sim_range_above(space->free, start);
	struct sim_range *node = NULL;

	if (below && below->start + below->size == start) {
		sim_range_remove(&space->free, below);
		start = below->start;
		size += below->size;
		node = below;
	}
	if (above && start + size == above->start) {
		sim_range_remove(&space->free, above);
		size += above->size;
		if (node)
			free(above);
		else
			node = above;
	}
	if (!node)
		node = malloc(sizeof *node);
	if (!node)
		return false;
	node->start = start;
	node->size = size;
	sim_range_insert(&space->free, node);
	return true;
}

void sim_space_cut(struct sim_space *space, uint64_t start, uint64_t size)
{
	struct sim_range *range = sim_range_floor(space->free, start);

	if (!range || range->start + range->size < start + size)
		return;
	uint64_t head = start - range->start, tail_start = start + size, tail = range->start + range->size - tail_start;
	sim_range_remove(&space->free, range);
	if (head) {
		range->size = head;
		sim_range_insert(&space->free, range);
		range = NULL;
	}
	if (tail) {
		if (!range)
			range = malloc(sizeof *range);
		if (!range)
			return; /* the tail is lost until the process ends: room, not memory */
		range->start = tail_start;
		range->size = tail;
		sim_range_insert(&space->free, range);
		range = NULL;
	}
	free(range);
}

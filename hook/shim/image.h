/* image.h: how much device memory the variables of a program image take (image.c, ptx.c). */
#ifndef PARTAGE_SHIM_IMAGE_H
#define PARTAGE_SHIM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes, UINT64_MAX where a declaration is not understood; 0 of NULL and of what is no image. `size` is SIZE_MAX where only
 * the image itself says how long it is. */
uint64_t vgpu_image_variables(const void *image, size_t size);
/* The same of PTX text, which may end before `size` with a NUL. */
uint64_t vgpu_ptx_variables(const char *text, uint64_t size);

#endif

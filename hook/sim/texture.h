/* texture.h: what texture and surface objects and references may be bound to, checked in one place. */
#ifndef PARTAGE_SIM_TEXTURE_H
#define PARTAGE_SIM_TEXTURE_H

#include "array.h"

/* May a texture read this resource? On success *array is the array (or the first level), NULL for memory. */
CUresult sim_resource_check(struct sim_context *context, const CUDA_RESOURCE_DESC *desc, struct sim_array **array);
/* May a surface read and write it? */
CUresult sim_surface_check(CUarray handle);

#endif

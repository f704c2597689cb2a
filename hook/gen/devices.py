"""Which parameters name a device, and the C condition that a named device was not granted.

A container sees only the devices of its grant: for every entry point that the shim would otherwise pass on, and that
takes a device by ordinal or by location, a hook is generated that answers CUDA_ERROR_INVALID_DEVICE for any other.
Negative ordinals (the host, "invalid") are the driver's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api import Function

#: Arrays: parameter -> the parameter that counts it.
_ARRAYS = {
    ("CUmemLocation", "prefetchLocs"): "numPrefetchLocs",
    ("CUmemAccessDesc", "desc"): "count",
    ("CUmemAccessDesc", "map"): "count",
}

#: Used by the conditions; emitted once per generated file.
HELPERS = """\
static bool hidden_ordinal(CUdevice device)
{
	return device >= 0 && !vgpu_visible(device);
}

/* A device may be named as a whole or by a part of its memory. */
static bool hidden_location(const CUmemLocation *location)
{
	if (!location)
		return false;
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		return hidden_ordinal(location->localized.deviceId);
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && hidden_ordinal(location->id);
}

/* An array is read only where something may be hidden: elsewhere a wrong count is the driver's to find. */
static bool must_read(const void *array, size_t count, bool *too_many)
{
	*too_many = false;
	if (!array || vgpu_granted_count() < 0)
		return false;
	*too_many = count > (size_t)1 << 20;
	return !*too_many;
}

/* Its callers may all be written by hand. */
__attribute__((unused)) static bool hidden_locations(const CUmemLocation *location, size_t count)
{
	bool too_many;
	if (!must_read(location, count, &too_many))
		return too_many;
	for (size_t i = 0; i < count; i++)
		if (hidden_location(&location[i]))
			return true;
	return false;
}

static bool hidden_accesses(const CUmemAccessDesc *access, size_t count)
{
	bool too_many;
	if (!must_read(access, count, &too_many))
		return too_many;
	for (size_t i = 0; i < count; i++)
		if (hidden_location(&access[i].location))
			return true;
	return false;
}
"""


def hidden_conditions(function: Function) -> list[str]:
    """C expressions, one for each parameter by which a device is named; empty if there is none."""
    found = []
    for parameter in function.parameters:
        kind = parameter.type.replace("const ", "").replace(" ", "")
        name = parameter.name
        if kind == "CUdevice":
            found.append(f"hidden_ordinal({name})")
        elif kind == "CUmemLocation":
            found.append(f"hidden_location(&{name})")
        elif kind == "CUmemLocation*" and (kind[:-1], name) in _ARRAYS:
            found.append(f"hidden_locations({name}, {_ARRAYS[kind[:-1], name]})")
        elif kind == "CUmemLocation*" and not name.endswith("_out"):
            found.append(f"hidden_location({name})")
        elif kind == "CUmemAccessDesc*" and (kind[:-1], name) in _ARRAYS:
            found.append(f"hidden_accesses({name}, {_ARRAYS[kind[:-1], name]})")
        elif kind == "CUmemAllocationProp*" and "const" in parameter.type:
            found.append(f"{name} && hidden_location(&{name}->location)")
    return found

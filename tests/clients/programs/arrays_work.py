"""A cuda-bindings program with arrays, mip-maps, textures and surfaces: bytes through all of them, then as many as are
given. Prints one JSON object; nothing in it but `given` and `free` depends on the share.
"""

import hashlib
import json
import random

from cuda.bindings import driver

CHUNK = 64 << 20
ARRAY = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
HOST = driver.CUmemorytype.CU_MEMORYTYPE_HOST
DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
FORMAT = driver.CUarray_format


def check(result):
    """Unpack a result tuple; raise on any error."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if values else None


def describe(extent, kind, channels, flags=0):
    """Make a descriptor."""
    desc = driver.CUDA_ARRAY3D_DESCRIPTOR()
    desc.Width, desc.Height, desc.Depth = extent
    desc.Format, desc.NumChannels, desc.Flags = kind, channels, flags
    return desc


def copy(array, data, extent, into):
    """Copy rows of `width` bytes between host memory and an array."""
    box = driver.CUDA_MEMCPY3D()
    width, height, _ = box.WidthInBytes, box.Height, box.Depth = extent
    if into:
        box.srcMemoryType, box.srcHost, box.srcPitch, box.srcHeight = HOST, data, width, height
        box.dstMemoryType, box.dstArray = ARRAY, array
    else:
        box.srcMemoryType, box.srcArray = ARRAY, array
        box.dstMemoryType, box.dstHost, box.dstPitch, box.dstHeight = HOST, data, width, height
    check(driver.cuMemcpy3D(box))


def through(array, width, height, depth):
    """Send bytes through an array and back; what came back, as a digest, and whether it is what went in."""
    data, back = dice.randbytes(width * height * depth), bytearray(width * height * depth)
    copy(array, data, (width, height, depth), True)
    copy(array, back, (width, height, depth), False)
    return [hashlib.sha256(back).hexdigest(), bytes(back) == data]


def until_refused(make, destroy):
    """Make arrays until the driver refuses one, destroy all; (bytes given, name of the error)."""
    held = []
    while True:
        error, *values = make()
        if error != driver.CUresult.CUDA_SUCCESS:
            break
        held.append(values[0])
    for item in held:
        check(destroy(item))
    return len(held) * CHUNK, error.name


def textures(array, mipmap):
    """Textures of an array and of a mip-map, and a surface: what they say of themselves."""
    told = []
    texture = driver.CUDA_TEXTURE_DESC()
    texture.flags = driver.CU_TRSF_NORMALIZED_COORDINATES
    texture.maxAnisotropy = 4
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType, resource.res.array.hArray = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY, array
    item = check(driver.cuTexObjectCreate(resource, texture, None))
    told.append(check(driver.cuTexObjectGetTextureDesc(item)).maxAnisotropy)
    told.append(int(check(driver.cuTexObjectGetResourceDesc(item)).res.array.hArray) == int(array))
    check(driver.cuTexObjectDestroy(item))
    surface = check(driver.cuSurfObjectCreate(resource))
    check(driver.cuSurfObjectDestroy(surface))
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    resource.res.mipmap.hMipmappedArray = mipmap
    item = check(driver.cuTexObjectCreate(resource, texture, None))
    check(driver.cuTexObjectDestroy(item))
    told.append(driver.cuTexObjectDestroy(item)[0].name)
    return told


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
dice = random.Random(7)

sent = {}
results = {"bytes": sent}
plane = check(
    driver.cuArray3DCreate(describe((300, 200, 0), FORMAT.CU_AD_FORMAT_FLOAT, 4, driver.CUDA_ARRAY3D_SURFACE_LDST))
)
sent["plane"] = through(plane, 4800, 200, 1)
volume = check(driver.cuArray3DCreate(describe((65, 33, 17), FORMAT.CU_AD_FORMAT_HALF, 2)))
sent["volume"] = through(volume, 260, 33, 17)
layers = check(
    driver.cuArray3DCreate(describe((64, 64, 6), FORMAT.CU_AD_FORMAT_UNSIGNED_INT8, 4, driver.CUDA_ARRAY3D_CUBEMAP))
)
sent["cube"] = through(layers, 256, 64, 6)
blocks = check(driver.cuArray3DCreate(describe((128, 64, 0), FORMAT.CU_AD_FORMAT_BC7_UNORM, 4)))
sent["blocks"] = through(blocks, 512, 16, 1)
video = check(driver.cuArray3DCreate(describe((640, 480, 0), FORMAT.CU_AD_FORMAT_NV12, 3)))
sent["colour"] = through(check(driver.cuArrayGetPlane(video, 1)), 640, 240, 1)
mipmap = check(driver.cuMipmappedArrayCreate(describe((256, 256, 0), FORMAT.CU_AD_FORMAT_FLOAT, 1), 9))
sent["level"] = through(check(driver.cuMipmappedArrayGetLevel(mipmap, 3)), 128, 32, 1)
results["textures"] = textures(plane, mipmap)
results["wrong"] = [
    driver.cuArray3DCreate(describe((64, 32, 6), FORMAT.CU_AD_FORMAT_FLOAT, 1, driver.CUDA_ARRAY3D_CUBEMAP))[0].name,
    driver.cuMipmappedArrayGetLevel(mipmap, 9)[0].name,
    driver.cuArrayGetPlane(plane, 0)[0].name,
]
for array in (plane, volume, layers, blocks, video):
    check(driver.cuArrayDestroy(array))
check(driver.cuMipmappedArrayDestroy(mipmap))

chunk = describe((4096, 4096, 0), FORMAT.CU_AD_FORMAT_FLOAT, 1)
small = driver.CUDA_ARRAY_DESCRIPTOR()
small.Width, small.Height, small.Format, small.NumChannels = 8192, 2048, FORMAT.CU_AD_FORMAT_FLOAT, 1
given = {
    "array": until_refused(lambda: driver.cuArrayCreate(small), driver.cuArrayDestroy),
    "array 3d": until_refused(lambda: driver.cuArray3DCreate(chunk), driver.cuArrayDestroy),
    "mip-map": until_refused(lambda: driver.cuMipmappedArrayCreate(chunk, 1), driver.cuMipmappedArrayDestroy),
}
free, total = driver.cuMemGetInfo()[1:]
print(json.dumps({"results": results, "given": given, "free": free, "total": total}))

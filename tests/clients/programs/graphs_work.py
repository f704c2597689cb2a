"""A cuda.core program with graphs: captured, built by hand, conditional, embedded, updated; then memory of graphs until
its share refuses a launch. Prints one JSON object.
"""

import ctypes
import json
import os

from cuda.core import Device, GraphMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
from cuda.core.graph import GraphBuilder, GraphDefinition

CHUNK = 64 << 20
PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"


def driver_error(error):
    """Name the driver's error in what was raised."""
    return next((word.strip(":") for word in str(error).split() if word.startswith("CUDA_ERROR")), repr(error))


def build(fill):
    """Return what `fill` captures, ended."""
    builder = device.create_graph_builder().begin_building()
    return (fill(builder) or builder).end_building()


def run(builder, times=1):
    """Launch what was built and wait."""
    graph = builder.complete()
    graph.upload(stream)
    for _ in range(times):
        graph.launch(stream)
    stream.sync()
    return graph


def branches(builder):
    """Three branches after one kernel, joined again; each calls back."""
    launch(builder, config, kernel)
    parts = builder.split(3)
    for part in parts:
        launch(part, config, kernel)
        part.callback(lambda: calls.append("branch"))
    return GraphBuilder.join(*parts)


def conditions(builder):
    """Every kind of condition, as its handle begins."""
    bodies = [
        builder.if_then(builder.create_condition(1)),
        *builder.if_else(builder.create_condition(0)),
        builder.while_loop(builder.create_condition(0)),
        *builder.switch(builder.create_condition(2), 3),
    ]
    for body in bodies:
        body.begin_building()
        launch(body, config, kernel)
        body.end_building()


def embedding(builder):
    """A graph in a graph."""
    launch(builder, config, kernel)
    builder.embed(build(lambda inner: launch(inner, config, kernel)))


def copied():
    """Send bytes to the device and back within one captured graph; return whether they came back."""
    pinned = LegacyPinnedMemoryResource()
    going, coming = pinned.allocate(1 << 20), pinned.allocate(1 << 20)
    source = os.urandom(1 << 20)
    views = [(ctypes.c_char * (1 << 20)).from_address(int(buffer.handle)) for buffer in (going, coming)]
    views[0][:] = source

    def capture(builder):
        between = GraphMemoryResource(device).allocate(1 << 20, stream=builder)
        between.copy_from(going, stream=builder)
        between.copy_to(coming, stream=builder)
        between.close(builder)

    run(build(capture), times=3)
    return views[1][:] == source


def until_refused():
    """Launch graphs that each keep CHUNK, until the driver refuses; (bytes kept, name of the error)."""
    kept, refusal = [], ""
    try:
        while True:
            definition = GraphDefinition()
            definition.allocate(CHUNK)
            graph = definition.instantiate()
            kept.append((definition, graph))
            graph.launch(stream)
            stream.sync()
    except Exception as error:
        refusal = driver_error(error)
    return (len(kept) - 1) * CHUNK, refusal


device = Device(0)
device.set_current()
stream = device.create_stream()
kernel = ObjectCode.from_ptx(PTX).get_kernel("nothing")
config = LaunchConfig(grid=1, block=1)
calls: list[str] = []

run(build(branches), times=2)
run(build(conditions))
run(build(embedding))
updated = run(build(lambda builder: launch(builder, config, kernel)))
updated.update(build(lambda builder: launch(builder, LaunchConfig(grid=2, block=32), kernel)))
updated.launch(stream)
same_bytes = copied()
memory = GraphMemoryResource(device)
reserved = memory.attributes.reserved_mem_current
memory.trim()
print(
    json.dumps(
        {
            "calls": len(calls),
            "same_bytes": same_bytes,
            "reserved": reserved,
            "trimmed": memory.attributes.reserved_mem_current,
            "given": until_refused(),
        }
    )
)

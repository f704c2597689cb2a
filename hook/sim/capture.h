/* capture.h: streams that capture: what the entry points that queue work ask and say.
 *
 * Each of them asks sim_stream_capturing() once it knows its stream, and then hands the work to one of the functions
 * below instead of the engine. What is not handed over, but queued all the same, is refused by the engine and ends the
 * capture (sim_capture_forbids).
 */
#ifndef PARTAGE_SIM_CAPTURE_H
#define PARTAGE_SIM_CAPTURE_H

#include "copy.h"
#include "engine.h"
#include "launch.h"

/* Adds a node to the capture of a stream; child graphs are cloned. */
CUresult sim_capture_node(struct sim_stream *stream, CUgraphNodeParams *params);
CUresult sim_capture_launch(struct sim_stream *stream, struct sim_function *function, const struct sim_launch *launch);
CUresult sim_capture_copy(struct sim_stream *stream, const struct sim_box *box, const struct sim_place *dst,
                          const struct sim_place *src);
CUresult sim_capture_fill(struct sim_stream *stream, const struct sim_fill *fill);
CUresult sim_capture_alloc(struct sim_stream *stream, CUdevice ordinal, size_t bytes, CUdeviceptr *out);
CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr p);
CUresult sim_capture_record(struct sim_stream *stream, struct sim_stream_event *event);
/* A stream is to wait for an event: true, and *error set, where that is a matter of captures. */
bool sim_capture_wait(struct sim_stream *stream, struct sim_stream_event *event, CUresult *error);

/* Why work may not be queued in this stream, or waited for: it captures, or it is the NULL stream beside a blocking one
 * that does. Ends those captures. CUDA_SUCCESS: it may. */
CUresult sim_capture_forbids(struct sim_stream *stream);
CUresult sim_capture_forbids_context(struct sim_context *context); /* the same for all streams of a context */
CUresult sim_capture_forbids_event(struct sim_stream_event *event); /* an event that was last recorded in a capture */
void sim_capture_abandon(struct sim_stream *stream); /* the stream is about to be destroyed */
void sim_capture_abandon_all(struct sim_context *context); /* its context is */
void sim_capture_forget(struct sim_stream_event *event); /* the event is recorded outside, or destroyed */
/* May this thread make a call that no capture sees (cuMemAlloc, a synchronous copy)? The generated entry layer asks for
 * those it lists. True: no, *result says why, and the captures in its way are ended. */
bool sim_capture_prohibits(int *result);

#endif

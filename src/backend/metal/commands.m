/* backend/metal/commands.m - dispatches into command buffers, their start, and what became of them.
 *
 * An encoder dispatches concurrently; only the pass's own barriers order. The status of every command buffer is read when it is waited for:
 * Metal signals no event after an error, so completion is never taken from one.
 */
#include "backend/metal/device.h"

static int open_buffer(struct device *v, struct calla_error *err) {
    @autoreleasepool {
        if (!v->queue) v->queue = [v->device newCommandQueue];
        v->buffer = [[v->queue commandBuffer] retain];
        v->encoder = [[v->buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent] retain];
    }
    if (v->encoder) return 0;
    [v->buffer release];
    v->buffer = nil;
    return err_set(err, CALLA_E_BACKEND, "metal: the device gives no command buffer");
}

int device_encode(struct metal_gpu *gpu, const struct metal_dispatch *d, struct calla_error *err) {
    struct device *v = (struct device *)gpu;
    int rc = v->encoder ? 0 : open_buffer(v, err);
    if (rc) return rc;
    if (d->threads > [v->pipelines[d->kernel] maxTotalThreadsPerThreadgroup])
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: %s needs %u threads in a group, this device gives it %lu", metal_kernels[d->kernel].name,
                       d->threads, (unsigned long)[v->pipelines[d->kernel] maxTotalThreadsPerThreadgroup]);
    if (d->barrier) [v->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    [v->encoder setComputePipelineState:v->pipelines[d->kernel]];
    for (int i = 0; i < d->n; i++)
        [v->encoder setBuffer:(id<MTLBuffer>)d->bind[i].memory->handle offset:d->bind[i].offset atIndex:(NSUInteger)i];
    [v->encoder setBytes:d->args length:d->args_bytes atIndex:(NSUInteger)d->n];
    [v->encoder dispatchThreadgroups:MTLSizeMake(d->groups[0], d->groups[1], d->groups[2])
               threadsPerThreadgroup:MTLSizeMake(d->threads, 1, 1)];
    return 0;
}

int device_commit(struct metal_gpu *gpu, int slot, struct calla_error *err) {
    struct device *v = (struct device *)gpu;
    int rc = 0;
    if (!v->buffer) return 0;
    [v->encoder endEncoding];
    [v->encoder release];
    v->encoder = nil;
    /* a pass of more command buffers than the list holds waits for its first ones */
    if (v->n_committed[slot] == METAL_BUFFERS_MAX) rc = device_wait(gpu, slot, err);
    @autoreleasepool {
        [v->buffer commit];
    }
    v->committed[slot][v->n_committed[slot]++] = v->buffer;
    v->buffer = nil;
    return rc;
}

static int status(id<MTLCommandBuffer> buffer, struct calla_error *err) {
    if ([buffer status] == MTLCommandBufferStatusCompleted) return 0;
    NSError *error = [buffer error];
    return err_set(err, CALLA_E_BACKEND, "metal: the device failed a command buffer of this pass: %s (code %ld)", device_words(error),
                   error ? (long)[error code] : 0L);
}

int device_wait(struct metal_gpu *gpu, int slot, struct calla_error *err) {
    struct device *v = (struct device *)gpu;
    int rc = 0;
    @autoreleasepool {
        for (int i = 0; i < v->n_committed[slot]; i++) {
            id<MTLCommandBuffer> buffer = v->committed[slot][i];
            [buffer waitUntilCompleted];
            const int code = status(buffer, rc ? NULL : err);
            rc = rc ? rc : code;
            [buffer release];
        }
        v->n_committed[slot] = 0;
        if (rc) { /* a queue may ignore what comes after an error */
            [v->queue release];
            v->queue = nil;
        }
    }
    return rc;
}

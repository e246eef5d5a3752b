/* backend/metal/device.h - what the Objective-C files share: the device with its queue, pipelines and command buffers.
 *
 * Manual retain and release (no ARC), so that the same files compile for the GNU runtime of the emulated tests; whatever Metal hands out
 * autoreleased is taken within an @autoreleasepool. One thread at a time. States of a command buffer: open (its encoder is), committed (in
 * its slot's list), done (dropped from the list by wait).
 */
#ifndef BACKEND_METAL_DEVICE_H
#define BACKEND_METAL_DEVICE_H
#include "backend/metal/host.h"

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

enum { METAL_BUFFERS_MAX = 64 }; /* command buffers of one pass */
struct device {
    struct metal_gpu base;
    id<MTLDevice> device;
    id<MTLCommandQueue> queue; /* nil after an error: the next pass makes a new one */
    id<MTLComputePipelineState> pipelines[KERNELS];
    id<MTLCommandBuffer> buffer; /* open, or nil */
    id<MTLComputeCommandEncoder> encoder;
    id<MTLCommandBuffer> committed[METAL_RING][METAL_BUFFERS_MAX];
    int n_committed[METAL_RING];
};

/* What the system says of an error, which may be nil. Valid as long as the error, and within its autorelease pool. */
static inline const char *device_words(NSError *error) { return error ? [[error localizedDescription] UTF8String] : "no reason given"; }

/* commands.m */
int device_encode(struct metal_gpu *gpu, const struct metal_dispatch *d, struct calla_error *err);
int device_commit(struct metal_gpu *gpu, int slot, struct calla_error *err);
int device_wait(struct metal_gpu *gpu, int slot, struct calla_error *err);
#endif

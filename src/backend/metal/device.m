/* backend/metal/device.m - opening a Metal device: what it must be able to do, libraries from the embedded text, a pipeline for every kernel.
 *
 * Everything that can fail on a strange device fails here, by the kernel's name, before a model is loaded.
 */
#include "backend/metal/device.h"
#include "backend/metal/metal.h"

enum { NEWEST_FAMILY = 12, OLDEST_FAMILY = 7, LIBRARIES = 16 };

static void device_close(struct metal_gpu *gpu) {
    struct device *v = (struct device *)gpu;
    [v->encoder endEncoding];
    [v->encoder release];
    [v->buffer release];
    for (int k = 0; k < KERNELS; k++) [v->pipelines[k] release];
    [v->queue release];
    [v->device release];
    mem_free(v);
}

static int device_wrap(struct metal_gpu *gpu, struct metal_memory *m, struct calla_error *err) {
    struct device *v = (struct device *)gpu;
    m->handle = [v->device newBufferWithBytesNoCopy:m->host length:m->bytes options:MTLResourceStorageModeShared deallocator:nil];
    return m->handle ? 0 : err_set(err, CALLA_E_MEMORY, "metal: the device takes no buffer of %zu bytes", m->bytes);
}

static void device_unwrap(struct metal_gpu *gpu, struct metal_memory *m) {
    (void)gpu;
    [(id)m->handle release];
    m->handle = NULL;
}

/* ---- what the device is ---- */
static int family_of(id<MTLDevice> device) {
    for (int n = NEWEST_FAMILY; n >= OLDEST_FAMILY; n--)
        if ([device supportsFamily:(MTLGPUFamily)(1000 + n)]) return n;
    return 0;
}

static int probe(struct device *v, struct calla_error *err) {
    v->device = MTLCreateSystemDefaultDevice();
    if (!v->device) return err_set(err, CALLA_E_UNSUPPORTED, "metal: this machine has no Metal device; use --backend cpu");
    const char *name = [[v->device name] UTF8String];
    const int family = family_of(v->device);
    if (!family || ![v->device hasUnifiedMemory])
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: %s is no Apple silicon (M1 or later is needed); use --backend cpu", name);
    snprintf(v->base.name, sizeof v->base.name, "%s, family %d", name, family);
    v->base.working_set = [v->device recommendedMaxWorkingSetSize];
    v->base.longest = [v->device maxBufferLength];
    v->base.threadgroup_bytes = (int)[v->device maxThreadgroupMemoryLength];
    return 0;
}

/* ---- libraries and pipelines ---- */
static int failed(const char *what, const char *name, NSError *error, struct calla_error *err) {
    return err_set(err, CALLA_E_BACKEND, "metal: %s %s: %s", what, name, error ? [[error localizedDescription] UTF8String] : "no reason given");
}

static int compile(struct device *v, const struct metal_source *source, id<MTLLibrary> *out, struct calla_error *err) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    NSString *text = [[NSString alloc] initWithUTF8String:source->text];
    NSError *error = nil;
    /* set, for its default follows the system's age; safe maths, for infinities mark what is masked */
    [options setLanguageVersion:MTLLanguageVersion3_0];
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations" /* its successor needs macOS 15 */
    [options setFastMathEnabled:NO];
#pragma clang diagnostic pop
    *out = [v->device newLibraryWithSource:text options:options error:&error];
    [text release];
    [options release];
    return *out ? 0 : failed("the shaders of", source->name, error, err);
}

static int check_pipeline(const struct device *v, int kernel, struct calla_error *err) {
    const struct metal_kernel_info *info = &metal_kernels[kernel];
    id<MTLComputePipelineState> p = v->pipelines[kernel];
    if ([p threadExecutionWidth] != 32 || [p maxTotalThreadsPerThreadgroup] < (NSUInteger)info->threads)
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: kernel %s would have %lu threads in groups of %lu at most; it needs 32 in groups of %d",
                       info->name, (unsigned long)[p threadExecutionWidth], (unsigned long)[p maxTotalThreadsPerThreadgroup], info->threads);
    if ([p staticThreadgroupMemoryLength] > (NSUInteger)v->base.threadgroup_bytes)
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: kernel %s needs %lu bytes of threadgroup memory, the device has %d", info->name,
                       (unsigned long)[p staticThreadgroupMemoryLength], v->base.threadgroup_bytes);
    return 0;
}

static int pipeline(struct device *v, int kernel, id<MTLLibrary> const *libraries, int n, struct calla_error *err) {
    id<MTLFunction> function = nil;
    NSError *error = nil;
    NSString *name = [[NSString alloc] initWithUTF8String:metal_kernels[kernel].name];
    for (int i = 0; i < n && !function; i++) function = [libraries[i] newFunctionWithName:name];
    [name release];
    if (function) v->pipelines[kernel] = [v->device newComputePipelineStateWithFunction:function error:&error];
    [function release];
    return v->pipelines[kernel] ? check_pipeline(v, kernel, err) : failed("kernel", metal_kernels[kernel].name, error, err);
}

static int pipelines(struct device *v, struct calla_error *err) {
    id<MTLLibrary> libraries[LIBRARIES] = {nil};
    int rc = 0, n = 0;
    for (; metal_sources[n].name && n < LIBRARIES && !rc; n++) rc = compile(v, &metal_sources[n], &libraries[n], err);
    for (int k = 0; k < KERNELS && !rc; k++) rc = pipeline(v, k, libraries, n, err);
    for (int i = 0; i < n; i++) [libraries[i] release];
    return rc;
}

int metal_open(struct backend **out, const struct be_options *options, struct calla_error *err) {
    static const struct metal_gpu_ops ops = {
        .close = device_close,
        .wrap = device_wrap,
        .unwrap = device_unwrap,
        .encode = device_encode,
        .commit = device_commit,
        .wait = device_wait,
    };
    struct device *v = mem_calloc(1, sizeof *v);
    int rc;
    if (!v) return err_set(err, CALLA_E_MEMORY, "metal: no memory for the device");
    v->base.ops = &ops;
    @autoreleasepool {
        rc = probe(v, err);
        if (!rc) rc = pipelines(v, err);
    }
    if (rc) device_close(&v->base);
    else rc = metal_open_on(&v->base, options, out, err);
    return rc;
}

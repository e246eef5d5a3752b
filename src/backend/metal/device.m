/* backend/metal/device.m - opening a Metal device: what it must be able to do, libraries, embedded compiled or as text, a pipeline for every kernel.
 *
 * Everything that can fail on a strange device fails here, by the kernel's name, before a model is loaded. The libraries by tensor operations
 * come last and apart, so that a device may refuse them and keep the others.
 */
#include "backend/metal/device.h"
#include "backend/metal/metal.h"
#include "base/log.h"
#include <dispatch/dispatch.h>

enum { NEWEST_FAMILY = 12, OLDEST_FAMILY = 7, LIBRARIES = 16, METAL4_FAMILY = 5002 };

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
    snprintf(v->base.name, sizeof v->base.name, "%.48s, family %d", name, family);
    v->base.family = family;
    v->base.working_set = [v->device recommendedMaxWorkingSetSize];
    v->base.longest = [v->device maxBufferLength];
    v->base.threadgroup_bytes = (int)[v->device maxThreadgroupMemoryLength];
    return 0;
}

/* ---- libraries and pipelines ---- */
static int failed(const char *what, const char *name, NSError *error, struct calla_error *err) {
    return err_set(err, CALLA_E_BACKEND, "metal: %s %s: %s", what, name, device_words(error));
}

/* What the build compiled; nil where there is none or this system does not take it. */
static id<MTLLibrary> load(struct device *v, const struct metal_source *source) {
    NSError *error = nil;
    if (!source->compiled) return nil;
    dispatch_data_t data = dispatch_data_create(source->compiled, source->compiled_bytes, NULL, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
    id<MTLLibrary> library = [v->device newLibraryWithData:data error:&error];
    dispatch_release(data);
    if (!library)
        log_line(LOG_INFO, "metal: %s is compiled here, for what the build made of it is not taken: %s", source->name,
                 device_words(error));
    return library;
}

static int compile(struct device *v, const struct metal_source *source, id<MTLLibrary> *out, struct calla_error *err) {
    *out = load(v, source);
    if (*out) return 0;
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    NSString *text = [[NSString alloc] initWithUTF8String:source->text];
    NSError *error = nil;
    /* set, for its default follows the system's age (4.0 as a number, for older headers do not name it); safe maths, for infinities mark
     * what is masked */
    [options setLanguageVersion:(MTLLanguageVersion)((NSUInteger)source->language << 16)];
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
    for (const struct metal_source *s = metal_sources; s->name && n < LIBRARIES && !rc; s++)
        if (s->language == 3) rc = compile(v, s, &libraries[n++], err);
    for (int k = 0; k < PLAIN_KERNELS && !rc; k++) rc = pipeline(v, k, libraries, n, err);
    for (int i = 0; i < n; i++) [libraries[i] release];
    return rc;
}

static int device_tensors(struct metal_gpu *gpu, enum be_compute compute, struct calla_error *err) {
    struct device *v = (struct device *)gpu;
    const char *name = compute == BE_FLOAT32 ? "linear_tensor_f32.metal" : "linear_tensor_bf16.metal";
    const struct metal_source *source = metal_sources;
    const int first = metal_tensor_kernel(compute, KERNEL_gemm4_tensor_f32);
    id<MTLLibrary> library = nil;
    if (![v->device supportsFamily:(MTLGPUFamily)METAL4_FAMILY])
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: no tensor operations: this system has no Metal 4 (macOS 26 or later)");
    while (source->name && strcmp(source->name, name)) source++;
    if (!source->name) return err_set(err, CALLA_E_INTERNAL, "metal: this build has no %s", name);
    int rc;
    @autoreleasepool {
        rc = compile(v, source, &library, err);
        for (int k = first; k < first + TENSOR_KERNELS && !rc; k++) rc = pipeline(v, k, &library, 1, err);
        [library release];
    }
    return rc;
}

int metal_open(struct backend **out, const struct be_options *options, struct calla_error *err) {
    static const struct metal_gpu_ops ops = {
        .close = device_close,
        .wrap = device_wrap,
        .unwrap = device_unwrap,
        .tensors = device_tensors,
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

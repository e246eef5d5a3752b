/* standin/standin.m - Metal's objects over the emulator (standin.h says what is checked). */
#include "standin.h"
#include "emulator.h"
#import <Metal/Metal.h>
#include <unistd.h>

void standin_forget(void);

struct standin_device standin_device;
struct standin_break standin_break;
struct standin_counts standin_counts;

enum { BUFFERS = 31, BYTES = 4096, DISPATCHES = 4096, QUEUE = 256, KERNELS = 128 };
static struct {
    char name[64];
    long n;
} kernels[KERNELS];
static int n_kernels;

void standin_reset(void) {
    standin_device = (struct standin_device){9, 1, 32ull << 30, (size_t)16 << 30, 1024, 0, 1};
    standin_break = (struct standin_break){-1, -1, -1, -1, NULL, 0, NULL, NULL, NULL};
    standin_counts = (struct standin_counts){0};
    n_kernels = 0;
    standin_forget();
}

static void count_kernel(const char *name) {
    int i = 0;
    while (i < n_kernels && strcmp(kernels[i].name, name)) i++;
    if (i == KERNELS) return;
    if (i == n_kernels) snprintf(kernels[n_kernels++].name, sizeof kernels[i].name, "%s", name), kernels[i].n = 0;
    kernels[i].n++;
}
long standin_dispatched(const char *prefix) {
    long n = 0;
    for (int i = 0; i < n_kernels; i++)
        if (strncmp(kernels[i].name, prefix, strlen(prefix)) == 0) n += kernels[i].n;
    return n;
}

@interface StandinError : NSError
- (instancetype)initWithCode:(NSInteger)n reason:(const char *)text;
@end
@implementation StandinError
- (instancetype)initWithCode:(NSInteger)n reason:(const char *)text {
    number = n;
    reason = [[NSString alloc] initWithUTF8String:text];
    return self;
}
- (void)dealloc {
    [reason release];
    [super dealloc];
}
@end

/* ---- buffers ---- */
@interface StandinBuffer : NSObject <MTLBuffer> {
@public
    char *at;
    NSUInteger bytes;
    uint32_t *touched[2]; /* since the last barrier of an encoder: a bit for each 4 bytes, read and written */
    BOOL listed;          /* touched at all */
}
- (long)users;
- (void)borrow:(long)n;
@end
@implementation StandinBuffer
- (NSUInteger)length {
    return bytes;
}
- (long)users {
    return borrowed;
}
- (void)borrow:(long)n {
    borrowed += n;
}
- (oneway void)release {
    /* a command buffer keeps the object, but the pages are the host's own */
    if (borrowed > 0 && count <= borrowed + 1) standin_note("a buffer of %lu bytes is released while a command buffer needs its pages", bytes);
    [super release];
}
- (void)dealloc {
    free(touched[0]);
    free(touched[1]);
    touched[0] = touched[1] = NULL;
    [super dealloc];
}
@end

/* ---- libraries ---- */
@implementation StandinData
- (void)dealloc {
    free(bytes);
    bytes = NULL;
    [super dealloc];
}
@end
dispatch_data_t dispatch_data_create(const void *bytes, size_t n, void *queue, dispatch_block_t destructor) {
    StandinData *d = [[StandinData alloc] init];
    if (queue || destructor) standin_note("data that is not copied");
    d->bytes = memcpy(malloc(n), bytes, n);
    d->n = n;
    return d;
}
void dispatch_release(dispatch_data_t data) { [data release]; }

@interface StandinFunction : NSObject <MTLFunction> {
@public
    char name[64];
}
@end
@implementation StandinFunction
@end

@interface StandinLibrary : NSObject <MTLLibrary> {
@public
    char *source;
    MTLLanguageVersion version;
}
@end
@implementation StandinLibrary
/* The kernel is declared in this text: plainly, or by a macro that is given its name or pastes the end of it. What stands behind a test of
 * the language's version is there for that version only. */
- (BOOL)declares:(const char *)name {
    char wanted[96];
    if (strstr(source, "__METAL_VERSION__ >= 400") && version < MTLLanguageVersion4_0) return NO;
    snprintf(wanted, sizeof wanted, "kernel void %s(", name);
    if (strstr(source, wanted)) return YES;
    snprintf(wanted, sizeof wanted, "(%s, ", name);
    if (strstr(source, "kernel void name(") && strstr(source, wanted)) return YES;
    for (int n = (int)strlen(name); n > 2; n--) {
        snprintf(wanted, sizeof wanted, "kernel void %.*s##", n, name);
        if (!strstr(source, wanted)) continue;
        snprintf(wanted, sizeof wanted, "(%s, ", name + n);
        if (strstr(source, wanted)) return YES;
        snprintf(wanted, sizeof wanted, "(%s)", name + n);
        if (strstr(source, wanted)) return YES;
    }
    return NO;
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
    const char *wanted = [name UTF8String];
    if (![self declares:wanted] || !emu_has(wanted)) return nil;
    StandinFunction *f = [[StandinFunction alloc] init];
    snprintf(f->name, sizeof f->name, "%s", wanted);
    return f;
}
- (void)dealloc {
    free(source);
    [super dealloc];
}
@end

@interface StandinPipeline : NSObject <MTLComputePipelineState> {
@public
    char name[64];
}
@end
@implementation StandinPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return (NSUInteger)standin_device.max_threads;
}
- (NSUInteger)threadExecutionWidth {
    return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength {
    return 0; /* known only when it runs, where the emulator checks it */
}
@end

@implementation MTLCompileOptions
- (void)setLanguageVersion:(MTLLanguageVersion)v {
    version = v;
}
- (void)setFastMathEnabled:(BOOL)f {
    fast = f;
}
- (BOOL)right {
    return version >= MTLLanguageVersion3_0 && !fast;
}
- (MTLLanguageVersion)version {
    return version;
}
@end
@interface MTLCompileOptions (Standin)
- (BOOL)right;
- (MTLLanguageVersion)version;
@end

/* ---- command buffers ---- */
struct binding {
    StandinBuffer *buffer; /* or NULL: bytes */
    NSUInteger offset, length;
    char bytes[64];
    BOOL bound;
};
struct recorded {
    StandinPipeline *pipeline;
    struct binding binding[BUFFERS];
    MTLSize groups, threads;
    BOOL barrier; /* before it */
};

@class StandinQueue;
@interface StandinCommands : NSObject <MTLCommandBuffer> {
@public
    StandinQueue *queue;
    struct recorded **list;
    int n;
    long number;
    BOOL encoding;
    MTLCommandBufferStatus state;
    StandinError *failure;
}
- (void)run;
@end

@interface StandinEncoder : NSObject <MTLComputeCommandEncoder> {
@public
    StandinCommands *commands;
    struct recorded next;
    BOOL concurrent, ended, barrier;
}
@end

@interface StandinQueue : NSObject <MTLCommandQueue> {
@public
    StandinCommands *waiting[QUEUE]; /* committed, not run */
    int n;
    BOOL broken; /* ignores all that follows an error */
}
- (void)runUntil:(StandinCommands *)last;
@end

@implementation StandinEncoder
- (BOOL)usable:(const char *)what {
    if (count > 0 && !ended) return YES;
    standin_note("%s on an encoder that has ended or was released", what);
    return NO;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
    if ([self usable:"setComputePipelineState"]) next.pipeline = (StandinPipeline *)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    StandinBuffer *b = (StandinBuffer *)buffer;
    const long n = standin_counts.binds++;
    if (![self usable:"setBuffer"]) return;
    if (n == standin_break.index) index++;
    if (n == standin_break.offset) offset += 256;
    if (index >= BUFFERS) {
        standin_note("buffer index %lu; the last is 30", index);
        return;
    }
    if (!b || [b retainCount] < 1) standin_note("buffer %lu is nil or was released", index);
    else if (offset % 4 || offset >= b->bytes) standin_note("offset %lu of a buffer of %lu bytes", offset, b->bytes);
    next.binding[index] = (struct binding){.buffer = b, .offset = offset, .bound = YES};
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
    if (![self usable:"setBytes"]) return;
    if (length > sizeof next.binding[0].bytes || length > BYTES || index >= BUFFERS) {
        standin_note("setBytes of %lu bytes at %lu", length, index);
        return;
    }
    next.binding[index] = (struct binding){.length = length, .bound = YES};
    memcpy(next.binding[index].bytes, bytes, length);
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
    if (![self usable:"memoryBarrier"]) return;
    if (!(scope & MTLBarrierScopeBuffers)) standin_note("a barrier of another scope than buffers");
    if (standin_counts.barriers++ != standin_break.barrier) barrier = YES;
}
/* On a device what is bound stays bound; here a dispatch must bind all that it uses, so that one left out is noticed. */
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    if (![self usable:"dispatch"]) return;
    if (!next.pipeline || commands->n == DISPATCHES) {
        standin_note("a dispatch without a pipeline, or one too many");
        return;
    }
    struct recorded *r = malloc(sizeof *r);
    *r = next;
    r->groups = groups;
    r->threads = threads;
    r->barrier = barrier || !concurrent;
    barrier = NO;
    [r->pipeline retain];
    for (int i = 0; i < BUFFERS; i++)
        if (r->binding[i].buffer) {
            [r->binding[i].buffer retain];
            [r->binding[i].buffer borrow:1];
        }
    commands->list = realloc(commands->list, (size_t)(commands->n + 1) * sizeof *commands->list);
    commands->list[commands->n++] = r;
    memset(next.binding, 0, sizeof next.binding);
    standin_counts.dispatches++;
    count_kernel(r->pipeline->name);
}
- (void)endEncoding {
    if (![self usable:"endEncoding"]) return;
    ended = YES;
    commands->encoding = NO;
}
- (void)dealloc {
    if (!ended) standin_note("an encoder is released before endEncoding");
    [super dealloc];
}
@end

/* ---- what dispatches touch ---- */
static StandinBuffer *listed[1024];
static int n_listed;
static const struct recorded *running;

static void forget_touched(void) {
    for (int i = 0; i < n_listed; i++) {
        for (int k = 0; k < 2; k++)
            if (listed[i]->touched[k]) memset(listed[i]->touched[k], 0, (listed[i]->bytes / 128 + 2) * sizeof(uint32_t));
        listed[i]->listed = NO;
    }
    n_listed = 0;
}

/* Called twice for each buffer: first to compare with what came before, then to add. */
static int adding;
static void touched(void *ctx, int index, const uint32_t *read, const uint32_t *written) {
    const struct binding *bind = &running->binding[index];
    StandinBuffer *b = bind->buffer;
    const NSUInteger first = bind->offset / 4, last = (b->bytes - bind->offset) / 128; /* word of the maps, as the emulator makes them */
    static const char *const names[] = {"read", "write"};
    (void)ctx;
    for (int k = 0; k < 2; k++)
        if (!b->touched[k]) b->touched[k] = calloc(b->bytes / 128 + 2, sizeof(uint32_t));
    if (!b->listed && n_listed < 1024) {
        b->listed = YES;
        listed[n_listed++] = b;
    }
    for (NSUInteger i = 0; i <= last; i++) {
        const uint64_t mine[2] = {(uint64_t)read[i] << first % 32, (uint64_t)written[i] << first % 32};
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 2; k++) {
                const uint32_t bits = (uint32_t)(mine[k] >> 32 * half);
                const NSUInteger at = first / 32 + i + (NSUInteger)half;
                if (!bits) continue;
                if (adding) b->touched[k][at] |= bits;
                const uint32_t clash = adding ? 0 : bits & (b->touched[1][at] | (k ? b->touched[0][at] : 0));
                if (!clash) continue;
                standin_note("%s: buffer %d: the %s of byte %lu meets the %s of an earlier dispatch without a barrier between them",
                             running->pipeline->name, index, names[k], (at * 32 + (NSUInteger)__builtin_ctz(clash)) * 4,
                             names[b->touched[1][at] & clash ? 1 : 0]);
                return;
            }
    }
}
static struct {
    int index;
    uint32_t *map[2];
} kept[BUFFERS];
static int n_kept;
/* All buffers of a dispatch are compared before any is added, for one buffer may be bound twice. */
static void keep(void *ctx, int index, const uint32_t *read, const uint32_t *written) {
    const struct binding *bind = &running->binding[index];
    const size_t bytes = ((bind->buffer->bytes - bind->offset) / 128 + 1) * sizeof(uint32_t);
    adding = 0;
    touched(ctx, index, read, written);
    kept[n_kept].index = index;
    kept[n_kept].map[0] = memcpy(malloc(bytes), read, bytes);
    kept[n_kept++].map[1] = memcpy(malloc(bytes), written, bytes);
}

/* What a device would do that multiplies wrongly: one more in the first number that the dispatch wrote. */
static void falsify(const struct recorded *r) {
    for (int i = n_kept - 1; i >= 0; i--) {
        const struct binding *b = &r->binding[kept[i].index];
        const NSUInteger words = (b->buffer->bytes - b->offset) / 4;
        for (NSUInteger k = 0; k < words; k++)
            if (kept[i].map[1][k / 32] >> k % 32 & 1) {
                *(float *)(void *)(b->buffer->at + b->offset + 4 * k) += 1.0f;
                return;
            }
    }
}

@implementation StandinCommands
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
    if (encoding || state != MTLCommandBufferStatusNotEnqueued) standin_note("an encoder beside another, or after commit");
    StandinEncoder *e = [[[StandinEncoder alloc] init] autorelease];
    e->commands = self;
    e->concurrent = type == MTLDispatchTypeConcurrent;
    encoding = YES;
    return e;
}
- (void)commit {
    if (count < 1 || encoding || state != MTLCommandBufferStatusNotEnqueued) {
        standin_note("commit of a command buffer that is gone, still encoding, or committed");
        return;
    }
    state = MTLCommandBufferStatusCommitted;
    [self retain];
    number = standin_counts.command_buffers++;
    if (queue->n == QUEUE) standin_note("more than %d command buffers are waiting", QUEUE);
    else queue->waiting[queue->n++] = self;
    if (queue->n > standin_counts.deepest) standin_counts.deepest = queue->n;
}
- (void)waitUntilCompleted {
    if (count < 1 || state == MTLCommandBufferStatusNotEnqueued) standin_note("a wait for a command buffer that is gone or not committed");
    else [queue runUntil:self];
}
- (MTLCommandBufferStatus)status {
    return state;
}
- (NSError *)error {
    return failure;
}
- (void)dispatch:(struct recorded *)r {
    running = r;
    emu_begin((enum emu_order)(standin_counts.dispatches % 3), 1);
    for (int i = 0; i < BUFFERS; i++) {
        const struct binding *b = &r->binding[i];
        if (!b->bound) continue;
        if (b->buffer) emu_bind_place(i, b->buffer->at + b->offset, b->buffer->bytes - b->offset);
        else emu_bind(i, b->bytes, b->length);
    }
    n_kept = 0;
    emu_on_touched(keep, NULL);
    if (r->threads.height != 1 || r->threads.depth != 1) standin_note("threadgroups of more than one dimension");
    if (emu_dispatch(r->pipeline->name, (uint32_t)r->groups.width, (uint32_t)r->groups.height, (uint32_t)r->groups.depth,
                     (uint32_t)r->threads.width))
        standin_note("%s", emu_report());
    emu_on_touched(NULL, NULL);
    if (standin_break.wrong && strcmp(r->pipeline->name, standin_break.wrong) == 0) falsify(r);
    standin_counts.read += emu_bytes_read();
    standin_counts.written += emu_bytes_written();
    adding = 1;
    for (int i = 0; i < n_kept; i++) {
        touched(NULL, kept[i].index, kept[i].map[0], kept[i].map[1]);
        free(kept[i].map[0]), free(kept[i].map[1]);
    }
}
- (void)run {
    const BOOL fails = number == standin_break.command_buffer || queue->broken;
    forget_touched();
    for (int i = 0; i < n; i++) {
        if (list[i]->barrier) forget_touched();
        if (!fails || i < n / 2) [self dispatch:list[i]];
    }
    forget_touched();
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < BUFFERS; k++)
            if (list[i]->binding[k].buffer) {
                [list[i]->binding[k].buffer borrow:-1];
                [list[i]->binding[k].buffer release];
            }
        [list[i]->pipeline release];
        free(list[i]);
    }
    free(list);
    list = NULL;
    n = 0;
    state = fails ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    if (fails) failure = [[StandinError alloc] initWithCode:queue->broken ? 4 : 3 reason:queue->broken ? "ignored after an earlier error" : "page fault"];
    queue->broken = queue->broken || fails;
}
- (void)dealloc {
    if (state == MTLCommandBufferStatusCommitted) standin_note("a command buffer is gone before it is done");
    [failure release];
    [queue release];
    [super dealloc];
}
@end

@implementation StandinQueue
- (id<MTLCommandBuffer>)commandBuffer {
    StandinCommands *c = [[[StandinCommands alloc] init] autorelease];
    c->queue = [self retain];
    return c;
}
- (void)runUntil:(StandinCommands *)last {
    while (last->state == MTLCommandBufferStatusCommitted && n > 0) {
        StandinCommands *c = waiting[0];
        memmove(waiting, waiting + 1, (size_t)--n * sizeof *waiting);
        [c run];
        [c release];
    }
}
@end

/* ---- the device ---- */
@interface StandinDevice : NSObject <MTLDevice>
@end
@implementation StandinDevice
- (NSString *)name {
    return [NSString stringWithUTF8String:"emulated (no GPU)"];
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
    return family == 5002 ? standin_device.metal4 != 0 : family >= 1001 && family <= 1000 + standin_device.family;
}
- (BOOL)hasUnifiedMemory {
    return standin_device.unified != 0;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return standin_device.working_set;
}
- (NSUInteger)maxBufferLength {
    return standin_device.longest;
}
- (NSUInteger)maxThreadgroupMemoryLength {
    return EMU_THREADGROUP_BYTES;
}
- (id<MTLCommandQueue>)newCommandQueue {
    return [[StandinQueue alloc] init];
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator {
    const NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)pointer % page || length % page || length == 0 || options != MTLResourceStorageModeShared || deallocator) {
        standin_note("a buffer over memory that is not whole pages: %p, %lu bytes", pointer, length);
        return nil;
    }
    if (length > standin_device.longest) return nil;
    StandinBuffer *b = [[StandinBuffer alloc] init];
    b->at = pointer;
    b->bytes = length;
    return b;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
    const char *text = [source UTF8String];
    if (![options right]) standin_note("a library without language version, or with fast maths");
    if (strstr(text, "#include \"")) standin_note("the source of a library includes a file, which Metal cannot find");
    if (standin_break.no_library) {
        *error = [[[StandinError alloc] initWithCode:3 reason:"program_source:1:1: error: broken on purpose"] autorelease];
        return nil;
    }
    if ([options version] >= MTLLanguageVersion4_0 && !standin_device.metal4) {
        *error = [[[StandinError alloc] initWithCode:3 reason:"unknown language version"] autorelease];
        return nil;
    }
    if (standin_break.refused && strstr(text, standin_break.refused)) {
        *error = [[[StandinError alloc] initWithCode:3 reason:"program_source:9:1: error: static assertion failed"] autorelease];
        return nil;
    }
    StandinLibrary *l = [[StandinLibrary alloc] init];
    l->source = strdup(text);
    l->version = [options version];
    standin_counts.from_text++;
    return l;
}
/* As the stand-in for xcrun makes it: MTLB, one digit of the language version, the text. */
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)error {
    if ([data retainCount] < 1 || data->n < 5 || memcmp(data->bytes, "MTLB", 4)) standin_note("a compiled library that is none");
    const MTLLanguageVersion version = (MTLLanguageVersion)(data->bytes[4] - '0') << 16;
    if ((standin_break.data && memcmp(data->bytes, standin_break.data, strlen(standin_break.data)) == 0) ||
        (version >= MTLLanguageVersion4_0 && !standin_device.metal4)) {
        *error = [[[StandinError alloc] initWithCode:1 reason:"library is not for this system"] autorelease];
        return nil;
    }
    StandinLibrary *l = [[StandinLibrary alloc] init];
    l->source = strndup(data->bytes + 5, data->n - 5);
    l->version = version;
    standin_counts.from_data++;
    return l;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
    StandinFunction *f = (StandinFunction *)function;
    if (standin_break.kernel && strcmp(f->name, standin_break.kernel) == 0) {
        *error = [[[StandinError alloc] initWithCode:2 reason:"compiler encountered an internal error"] autorelease];
        return nil;
    }
    StandinPipeline *p = [[StandinPipeline alloc] init];
    snprintf(p->name, sizeof p->name, "%s", f->name);
    return p;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return standin_device.absent ? nil : [[StandinDevice alloc] init]; }

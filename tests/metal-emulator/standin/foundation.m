/* standin/foundation.m - reference counts that notice misuse: an object that is gone keeps its memory, so that a later message is reported
 * instead of crashing. */
#include "standin.h"
#import <Foundation/Foundation.h>
#include <stdarg.h>

id class_createInstance(Class, size_t);
const char *object_getClassName(id);

static long live;
static int reports;
static char report[512];
static __thread NSAutoreleasePool *innermost;

void standin_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (reports++ == 0) vsnprintf(report, sizeof report, format, args);
    va_end(args);
}
int standin_reports(void) { return reports; }
const char *standin_report(void) { return reports ? report : ""; }
long standin_live(void) { return live; }
void standin_forget(void);
void standin_forget(void) { reports = 0; }

@interface NSAutoreleasePool (Add)
- (void)add:(id)object;
@end

@implementation NSObject
+ (instancetype)alloc {
    NSObject *o = class_createInstance(self, 0);
    o->count = 1;
    live++;
    return o;
}
- (instancetype)init {
    return self;
}
- (instancetype)retain {
    if (count <= 0) standin_note("%s is retained after its last release", object_getClassName(self));
    else count++;
    return self;
}
- (oneway void)release {
    if (count <= 0) {
        standin_note("%s is released once too often", object_getClassName(self));
        return;
    }
    if (--count > 0) return;
    live--;
    [self dealloc];
}
- (instancetype)autorelease {
    if (!innermost) standin_note("%s is autoreleased without a pool", object_getClassName(self));
    else [innermost add:self];
    return self;
}
- (NSUInteger)retainCount {
    return (NSUInteger)count;
}
- (void)dealloc { /* its memory stays, so that whoever still uses it is noticed */
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
    outer = innermost;
    innermost = self;
    return self;
}
- (void)add:(id)object {
    if (n == room) {
        room = room ? 2 * room : 16;
        objects = realloc(objects, room * sizeof *objects);
    }
    objects[n++] = object;
}
- (void)drain {
    while (n > 0) [objects[--n] release];
    free(objects);
    objects = NULL;
    innermost = outer;
    [self release];
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char *)utf8 {
    return [[[self alloc] initWithUTF8String:utf8] autorelease];
}
- (instancetype)initWithUTF8String:(const char *)utf8 {
    text = strdup(utf8);
    return self;
}
- (const char *)UTF8String {
    if (count <= 0) standin_note("a string is read after its last release");
    return text;
}
@end

@implementation NSError
- (NSInteger)code {
    return number;
}
- (NSString *)localizedDescription {
    return reason;
}
@end

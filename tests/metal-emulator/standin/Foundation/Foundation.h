/* Foundation/Foundation.h - the few Foundation classes that the Metal host uses, ours, over the GNU Objective-C runtime: declarations as
 * Apple documents them, so that the same source compiles on macOS. Manual retain and release only. */
#ifndef STANDIN_FOUNDATION_H
#define STANDIN_FOUNDATION_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char BOOL;
#define YES ((BOOL)1)
#define NO  ((BOOL)0)
#define nil ((id)0)
typedef unsigned long NSUInteger;
typedef long NSInteger;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
    Class isa;
    long count;    /* 0: gone */
    long borrowed; /* retains that are the system's own, such as a command buffer's of its buffers */
}
+ (instancetype)alloc;
- (instancetype)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
    NSAutoreleasePool *outer;
    id *objects;
    size_t n, room;
}
- (void)drain;
@end

@interface NSString : NSObject {
    char *text;
}
+ (instancetype)stringWithUTF8String:(const char *)utf8;
- (instancetype)initWithUTF8String:(const char *)utf8;
- (const char *)UTF8String;
@end

@interface NSError : NSObject {
    NSInteger number;
    NSString *reason;
}
- (NSInteger)code;
- (NSString *)localizedDescription;
@end
#endif

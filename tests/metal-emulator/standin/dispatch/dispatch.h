/* dispatch/dispatch.h - the block of bytes that a compiled library is loaded from, as the host uses it. */
#ifndef STANDIN_DISPATCH_H
#define STANDIN_DISPATCH_H
#import <Foundation/Foundation.h>

@interface StandinData : NSObject {
  @public
    char *bytes;
    size_t n;
}
@end
typedef StandinData *dispatch_data_t;
typedef void (^dispatch_block_t)(void);
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0) /* the bytes are copied */
dispatch_data_t dispatch_data_create(const void *bytes, size_t n, void *queue, dispatch_block_t destructor);
void dispatch_release(dispatch_data_t data);
#endif

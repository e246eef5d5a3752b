/* page.h - the bytes of the chat page (page/chat.html) and of the API's description (openapi.json), put here when calla is built
 * (cmake/embed.cmake). */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H
#include <stddef.h>

extern const unsigned char page_chat[]; /* [page_chat_size], then a NUL */
extern const size_t page_chat_size;
extern const unsigned char page_openapi[]; /* [page_openapi_size], then a NUL */
extern const size_t page_openapi_size;
#endif

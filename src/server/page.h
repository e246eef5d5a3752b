/* page.h - the chat page's bytes, made from page/chat.html when calla is built (cmake/embed.cmake). */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H
#include <stddef.h>

extern const unsigned char page_chat[]; /* [page_chat_size], then a NUL */
extern const size_t page_chat_size;
#endif

/* parse_scan.c - recognises the tags of the answer format byte by byte. No tag is the start of another, and '<' stands only at their start,
 * so a failed match needs no second look. */
#include "text/parse.h"
#include <string.h>

#define NAME_MAX_BYTES 256

static const char *const TAGS[] = {"</think>", "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"};
enum { N_TAGS = sizeof TAGS / sizeof *TAGS };

bool scan_begin(struct tag_scan *s, unsigned allowed, size_t begin) {
    *s = (struct tag_scan){.candidates = allowed, .length = allowed != 0, .begin = begin};
    return allowed != 0;
}

static enum scan_result name_step(struct tag_scan *s, char c, size_t at) {
    bool usable = (unsigned char)c >= ' ' && c != '<' && c != 0x7F && at - s->name < NAME_MAX_BYTES;
    if (c != '>' && usable) return SCAN_HELD;
    s->length = 0;
    return c == '>' && at > s->name ? SCAN_TAG : SCAN_FAIL;
}

enum scan_result scan_step(struct tag_scan *s, char c, size_t at) {
    if (s->naming) return name_step(s, c, at);
    for (int i = 0; i < N_TAGS; i++) {
        if (!(s->candidates & TAG_BIT(i))) continue;
        if (TAGS[i][s->length] != c) s->candidates &= ~TAG_BIT(i);
        else if (TAGS[i][s->length + 1] == 0) {
            s->kind = (enum tag_kind)i;
            s->naming = c == '=';
            s->name = at + 1;
            if (!s->naming) s->length = 0;
            else s->length++;
            return s->naming ? SCAN_HELD : SCAN_TAG;
        }
    }
    if (s->candidates) s->length++;
    else s->length = 0;
    return s->candidates ? SCAN_HELD : SCAN_FAIL;
}

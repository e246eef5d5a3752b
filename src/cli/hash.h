/* cli/hash.h - SHA-256 of a checkpoint's files. */
#ifndef CLI_HASH_H
#define CLI_HASH_H
#include "calla_error.h"
#include <stdio.h>
/* One line a file, "<64 hex digits>  <name>", in the order of names; the folder's own regular files, links followed. */
int hash_folder(const char *dir, FILE *out, struct calla_error *err);
#endif

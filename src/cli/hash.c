/* cli/hash.c - see hash.h. */
#include "cli/hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

int hash_folder(const char *dir, FILE *out, struct calla_error *err) {
    struct dirent **names;
    int n = scandir(dir, &names, visible, alphasort), code = 0;
    if (n < 0) return err_set(err, CALLA_E_IO, "%s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        char *path = file_join(dir, names[i]->d_name), hex[HASH_HEX];
        struct stat st;
        if (!code && !path) code = err_set(err, CALLA_E_MEMORY, "out of memory");
        if (!code && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            code = hash_file(path, hex, err);
            if (!code) fprintf(out, "%s  %s\n", hex, names[i]->d_name);
        }
        mem_free(path);
        free(names[i]);
    }
    free(names);
    return code;
}

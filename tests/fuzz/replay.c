/* Runs a fuzz target once over each file of the given folders, without libFuzzer: any compiler, part of the ordinary tests. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run(const char *path) {
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) return -1;
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n ? n : 1);
    int rc = data && fread(data, 1, n, f) == n ? 0 : -1;
    if (rc == 0) LLVMFuzzerTestOneInput(data, n);
    free(data);
    fclose(f);
    return rc;
}

int main(int argc, char **argv) {
    int done = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (run(path) != 0) {
                fprintf(stderr, "%s: cannot be read\n", path);
                return 1;
            }
            done++;
        }
        if (d) closedir(d);
    }
    printf("%d inputs\n", done);
    return done ? 0 : 1;
}

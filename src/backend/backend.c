/* backend/backend.c - the back ends of this build, by name. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include <string.h>

static const struct entry {
    const char *name;
    int (*open)(struct backend **out, const struct be_options *options, struct calla_error *err);
} entries[] = {
    /* best first: "auto" takes the first that opens */
    {"cpu", cpu_open},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

int backend_open(struct backend **out, const char *name, const struct be_options *options, struct calla_error *err) {
    static const struct be_options none;
    bool any = !name || strcmp(name, "auto") == 0;
    char names[96] = "auto";
    int rc = CALLA_E_UNSUPPORTED;
    if (!options) options = &none;
    for (int i = 0; i < ENTRIES; i++) {
        if (any || strcmp(name, entries[i].name) == 0) {
            rc = entries[i].open(out, options, err);
            if (rc == 0 || !any) return rc;
        }
        strcat(strcat(names, ", "), entries[i].name);
    }
    if (any) return rc;
    return err_set(err, CALLA_E_UNSUPPORTED, "no back end \"%s\" in this build; it has %s", name, names);
}

/* backend/backend.c - the back ends of this build, by name. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/metal/record.h"
#ifdef CALLA_METAL
#include "backend/metal/metal.h"
#endif
#include <string.h>

static const struct entry {
    const char *name;
    int (*open)(struct backend **out, const struct be_options *options, struct calla_error *err);
} entries[] = {
    /* best first: "auto" takes the first that opens */
    {"cpu", cpu_open},
#ifdef CALLA_METAL
    {"metal", metal_open}, /* behind cpu until it has run on a Mac */
#endif
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

int backend_ledger_open(struct backend **out, const struct be_options *options, struct calla_error *err) {
    return metal_record_open(out, options, err);
}
int backend_ledger(struct backend *be, struct be_ledger_row rows[BE_LEDGER_ROWS]) { return metal_recorded(be, rows); }

int backend_open(struct backend **out, const char *name, const struct be_options *options, struct calla_error *err) {
    static const struct be_options none;
    bool any = !name || strcmp(name, "auto") == 0;
    char names[96] = "auto"; /* the names above are few and short */
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
    if (strcmp(name, "metal") == 0)
        return err_set(err, CALLA_E_UNSUPPORTED, "the metal back end is in builds for macOS only; this one has %s", names);
    return err_set(err, CALLA_E_UNSUPPORTED, "no back end \"%s\" in this build; it has %s", name, names);
}

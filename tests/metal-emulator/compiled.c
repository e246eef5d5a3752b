/* The Metal host over shaders that were compiled when calla was built (by the stand-in for xcrun): each library is loaded as it is, and its
 * text is what remains where a system refuses that. */
#include "backend/backend.h"
#include "standin.h"
#include "unit/unit.h"

/* How many libraries came from data and from text. */
static void opened(int family, const char *route, long data, long text) {
    struct backend *be = NULL;
    struct calla_error err = {0};
    struct be_info info;
    standin_device.family = family;
    if (backend_open(&be, "metal", &(struct be_options){0}, &err)) fail_msg("%s", err.message);
    be_ops(be)->info(be, &info);
    assert_string_equal(info.isa, route);
    be_ops(be)->close(be);
    if (standin_reports()) fail_msg("%d reports, the first: %s", standin_reports(), standin_report());
    assert_int_equal(standin_live(), 0);
    assert_int_equal(standin_counts.from_data, data);
    assert_int_equal(standin_counts.from_text, text);
}

static void libraries(void **state) {
    enum { PLAIN = 7 }; /* shaders without tensor operations */
    (void)state;
    standin_reset();
    opened(9, "simdgroup", PLAIN, 0);
    standin_reset();
    opened(10, "tensor", PLAIN + 1, 0);
    standin_reset();
    standin_break.data = "MTLB"; /* none is taken */
    opened(10, "tensor", 0, PLAIN + 1);
    standin_reset();
    standin_break.data = "MTLB4"; /* made for a later system */
    opened(10, "tensor", PLAIN, 1);
    standin_reset();
    standin_break.data = "MTLB4";
    standin_break.refused = "TENSOR(bf16";
    opened(10, "simdgroup", PLAIN, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(libraries)};
    return RUN(tests);
}

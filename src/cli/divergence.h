/* cli/divergence.h - how far two runs of the model are apart over whole distributions: `calla eval --against`.
 *
 * Prompts are windows of one length cut from a text, each begun by <|endoftext|>, spread evenly over it. The reference is another engine
 * of this program (every row of every prompt is compared), or a file that an earlier run wrote (the last row of each: the distribution of
 * the first token; whole rows of all would be gigabytes).
 */
#ifndef CLI_DIVERGENCE_H
#define CLI_DIVERGENCE_H
#include "base/str.h"
#include "cli/session.h"

struct divergence_plan {
    int prompts, length; /* at most this many, of so many ids each */
};
struct divergence {
    size_t rows;                    /* distributions compared */
    size_t not_finite;              /* of these: an infinity or NaN in one of the two; in none of the four figures */
    double mean, median, p99, most; /* of KL(reference || this run), nat; NAN where no row is finite */
    size_t same_top;                /* rows whose likeliest id is the same */
    int prompts, first_same;        /* last rows: the first token an answer begins with */
    int missed;                     /* first tokens that differ although the reference's two best are more than 0.1 nat apart */
};

/* Compare s with another engine on prompts cut from text. */
int divergence_live(struct session *s, struct session *reference, struct slice text, const struct divergence_plan *plan,
                    struct divergence *out, struct calla_error *err);
/* Write what s says to prompts cut from text; the file is written beside and then renamed. */
int divergence_save(struct session *s, struct slice text, const struct divergence_plan *plan, const char *path, struct calla_error *err);
/* Compare s with such a file on the prompts it holds. CALLA_E_FORMAT: no such file, a damaged one, or one of another vocabulary. */
int divergence_stored(struct session *s, const char *path, struct divergence *out, struct calla_error *err);
#endif

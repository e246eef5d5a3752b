/* an archive wants a source of its own */
typedef int calla_empty;

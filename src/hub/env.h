/* hub/env.h - what the environment says about the hub and its cache: the same variables, with the same defaults, as Hugging Face's own
 * tools. */
#ifndef HUB_ENV_H
#define HUB_ENV_H
#include "base/error.h"
#include <stdbool.h>

#define HUB_ENDPOINT "https://huggingface.co"
struct hub_env {
    char *cache;    /* folder of repositories: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
                       ~/.cache/huggingface/hub */
    char *endpoint; /* HF_ENDPOINT or HUB_ENDPOINT; http or https, no slash at its end, no user name */
    char *token;    /* HF_TOKEN, else HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH or HF_HOME/token; NULL without one */
    char *ca_file;  /* CURL_CA_BUNDLE, else SSL_CERT_FILE, else REQUESTS_CA_BUNDLE; NULL: the system's */
    bool offline;   /* HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE */
    int stall;      /* HF_HUB_DOWNLOAD_TIMEOUT: seconds without a byte after which a connection is given up; 30 */
};
/* CALLA_E_INVALID names the variable that cannot be used. hub_env_free also after a failure. */
int hub_env_read(struct hub_env *e, struct calla_error *err);
/* The cache's folder alone; mem_free. */
int hub_env_cache(char **cache, struct calla_error *err);
void hub_env_free(struct hub_env *e);
#endif

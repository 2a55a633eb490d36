/* For LD_PRELOAD: lookups of names in .silent fail after SILENCE_S seconds, like a name server that
 * does not respond. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && strstr(name, ".silent")) {
        sleep(atoi(getenv("SILENCE_S")));
        return EAI_AGAIN;
    }
    return real(name, service, hints, found);
}

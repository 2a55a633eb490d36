/* A name server that answers for no name in .silent, ten seconds later: for LD_PRELOAD. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && strstr(name, ".silent")) {
        sleep(10);
        return EAI_AGAIN;
    }
    return real(name, service, hints, found);
}

/*
 * A machine with faults, for tests: loaded before libc, it does what the file named by EVENKEEL_TEST_FAULTS lists at the moment:
 *   sync PART, write PART   fails such calls with EIO on files whose path has PART in it
 *   slow PART               has syncs and writes on such files take 3 ms longer
 *   clock SECONDS           sets the clock of the day forward, or back
 *   never NAME              ends the process when a thread whose name begins so makes such a call on a file
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static ssize_t (*real(const char *name))() { return (ssize_t (*)())dlsym(RTLD_NEXT, name); }

/* The list as it is now. Without stdio's buffers: this may run on any thread, and in the middle of anything. */
static void read_faults(char *lines, size_t room) {
    const char *faults = getenv("EVENKEEL_TEST_FAULTS");
    int control = faults ? open(faults, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t len = control >= 0 ? read(control, lines, room - 1) : 0;
    if (control >= 0) close(control);
    lines[len > 0 ? len : 0] = 0;
}

/* Ends the process if this is a file and the thread's name begins so. */
static void end_if_it_is(const char *name, const char *path, int fd) {
    char own[17] = "";
    struct stat status;
    prctl(PR_GET_NAME, own);
    if (strncmp(own, name, strlen(name)) || fstat(fd, &status) || !S_ISREG(status.st_mode)) return;
    dprintf(2, "%s has touched %s\n", own, path);
    _exit(99);
}

static int fails(const char *call, int fd) {
    int saved = errno, found = 0;
    char lines[1024], link[64], path[4096], *rest = NULL;
    read_faults(lines, sizeof lines);
    if (lines[0]) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t path_len = readlink(link, path, sizeof path - 1);
        path[path_len > 0 ? path_len : 0] = 0;
        for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            char *part = strchr(line, ' ');
            if (!part) continue;
            if (!strncmp(line, "never ", 6)) end_if_it_is(part + 1, path, fd);
            if (!strstr(path, part + 1)) continue;
            if (!strncmp(line, "slow ", 5)) usleep(3000);
            found |= !strncmp(line, call, strlen(call)) && line[strlen(call)] == ' ';
        }
    }
    errno = found ? EIO : saved;
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int saved = errno;
    char lines[1024];
    int result = (int)real("clock_gettime")(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        read_faults(lines, sizeof lines);
        char *step = strstr(lines, "clock ");
        if (step) time->tv_sec += atol(step + 6);
        errno = saved;
    }
    return result;
}

int fsync(int fd) { return fails("sync", fd) ? -1 : (int)real("fsync")(fd); }

int fdatasync(int fd) { return fails("sync", fd) ? -1 : (int)real("fdatasync")(fd); }

ssize_t write(int fd, const void *bytes, size_t len) { return fails("write", fd) ? -1 : real("write")(fd, bytes, len); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails("write", fd) ? -1 : real("writev")(fd, parts, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    return fails("write", fd) ? -1 : real("pwrite64")(fd, bytes, len, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    return fails("write", fd) ? -1 : real("pwrite64")(fd, bytes, len, at);
}

/*
 * A machine with faults, for tests: loaded before libc, it does what the file named by EVENKEEL_TEST_FAULTS lists at the moment:
 *   sync PART, write PART   fails such calls with EIO on files whose path has PART in it
 *   slow PART               has syncs and writes on such files take 3 ms longer
 *   hang PART              has them not return as long as the line is there
 *   clock SECONDS           sets the clock of the day forward, or back
 *   never NAME              ends the process when a thread whose name begins so makes such a call on a file
 *
 * The folder named by EVENKEEL_TEST_DISK, if there is one, has what syncs have made safe: of a file its bytes when its last
 * successful sync began, and of a folder the names in it, each under the inode's number and birth. `begun` and `ended` are as
 * old as the beginning and the end of the last sync of an incremental file of an append-only file.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
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
            if (!strncmp(line, "hang ", 5)) {
                usleep(3000);
                return fails(call, fd);
            }
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

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER, keeping = PTHREAD_MUTEX_INITIALIZER;

#define INODES 65536

/* Which inode this is, from its birth to its end; zero if there is none. */
static int identify(int folder, const char *name, char *id, size_t room) {
    struct statx status;
    int flags = *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(folder, name, flags, STATX_INO | STATX_BTIME, &status)) return 0;
    unsigned long long born = status.stx_btime.tv_sec * 1000000000ULL + status.stx_btime.tv_nsec;
    snprintf(id, room, "%llu-%llu", (unsigned long long)status.stx_ino, born);
    return 1;
}

static void keep_names(int folder, int copy) {
    char id[64];
    int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = own >= 0 ? fdopendir(own) : NULL;
    for (struct dirent *entry; names && (entry = readdir(names));) {
        int counts = strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        if (counts && identify(folder, entry->d_name, id, sizeof id)) dprintf(copy, "%s %s\n", id, entry->d_name);
    }
    if (names) closedir(names);
}

static void keep_bytes(int fd, off64_t len, int copy) {
    char own[64];
    off64_t from = 0;
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    int file = open(own, O_RDONLY | O_CLOEXEC);
    ssize_t moved = file < 0 ? -1 : 1;
    while (moved > 0 && from < len) moved = sendfile(copy, file, &from, len - from);
    if (moved < 0) {
        dprintf(2, "what was synced cannot be kept: %s\n", strerror(errno));
        _exit(99);
    }
    close(file);
}

/* A sync has made this safe. Of two of one inode, the one that began later counts. */
static void keep(const char *disk, int fd, const struct stat *before, unsigned long turn) {
    static unsigned long kept[INODES];
    char id[64], path[4096], draft[4096];
    pthread_mutex_lock(&keeping);
    if (kept[before->st_ino % INODES] < turn && identify(fd, "", id, sizeof id)) {
        kept[before->st_ino % INODES] = turn;
        snprintf(path, sizeof path, "%s/%s", disk, id);
        snprintf(draft, sizeof draft, "%s/draft", disk);
        int copy = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (S_ISDIR(before->st_mode)) keep_names(fd, copy);
        else keep_bytes(fd, before->st_size, copy);
        close(copy);
        rename(draft, path);
    }
    pthread_mutex_unlock(&keeping);
}

/* Has this file be as old as the present moment. */
static void note(const char *disk, const char *name, int fd) {
    char link[64], path[4096] = "", noted[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, ".incr")) return;
    snprintf(noted, sizeof noted, "%s/%s", disk, name);
    int file = open(noted, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    futimens(file, NULL);
    close(file);
}

static int sync_by(const char *call, int fd) {
    static unsigned long turns;
    struct stat before;
    const char *disk = getenv("EVENKEEL_TEST_DISK");
    if (fails("sync", fd)) return -1;
    if (!disk) return (int)real(call)(fd);
    note(disk, "begun", fd);
    pthread_mutex_lock(&order);
    unsigned long turn = ++turns;
    int known = fstat(fd, &before) == 0;
    pthread_mutex_unlock(&order);
    int result = (int)real(call)(fd);
    if (result == 0 && known) keep(disk, fd, &before, turn);
    note(disk, "ended", fd);
    return result;
}

int fsync(int fd) { return sync_by("fsync", fd); }

int fdatasync(int fd) { return sync_by("fdatasync", fd); }

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

/* Loaded into every process of a chaos run by LD_PRELOAD (tests/chaos/interpose.py): a disk that
 * fails, a wall clock that is wrong, and a process that stops at a named moment.
 *
 * What it does is said by a small shared file, LAPSE_CHAOS_CONTROL, mapped by everybody and written
 * by the run alone, save for the counters. Only files below `prefix` are touched. Java is left
 * alone: it writes nothing there, and waits for moments of the wall clock.
 *
 * A moment is the n-th call of some kind whose path ends in some text. The process counts itself,
 * stops (SIGSTOP) right before or right after that call, and the run does as it pleases with it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OP_WRITE = 1, OP_SYNC = 2, OP_RENAME = 4, OP_CREATE = 8, OP_UNLINK = 16, OP_READ = 32 };

struct control { /* little-endian, as tests/chaos/interpose.py packs it */
    int64_t wall_offset_ns;
    int32_t disk_errno;       /* 0: the disk is fine */
    uint32_t disk_ops;        /* which calls fail */
    uint32_t disk_per_mille;  /* how many of them */
    uint32_t disk_torn;       /* a write that fails has written its first half */
    uint32_t delay_us;        /* how much longer a write or sync takes */
    uint32_t moment_ops;      /* 0: none is waited for */
    int32_t moment_countdown; /* the n-th such call */
    uint32_t moment_before;   /* 1: right before it, 0: right after */
    uint64_t disk_hits;       /* calls that failed */
    int32_t moment_pid;       /* who has stopped; 0: nobody yet */
    uint32_t seed;
    char moment_end[64];      /* what the path ends in */
    char prefix[512];
};

static struct control *control;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    const char *path = getenv("LAPSE_CHAOS_CONTROL");
    if (!path || !strcmp(program_invocation_short_name, "java"))
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        __atomic_store_n(&control, at, __ATOMIC_RELEASE);
}

/* A copy of what is wanted now; NULL while this library is being loaded itself. */
static struct control *wanted(void)
{
    static __thread int inside;
    if (inside)
        return NULL;
    inside = 1;
    pthread_once(&once, load);
    inside = 0;
    return control;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return m && m <= n && !memcmp(text + n - m, end, m);
}

static int is_ours(struct control *c, const char *path)
{
    size_t n = strlen(c->prefix);
    return n && !strncmp(path, c->prefix, n);
}

static const char *path_of(int fd, char *into, size_t size)
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, into, size - 1);
    into[n < 0 ? 0 : n] = 0;
    return into;
}

/* xorshift: the same share of calls fails whoever asks; which ones depends on the schedule. */
static int is_chosen(struct control *c)
{
    uint32_t x = __atomic_load_n(&c->seed, __ATOMIC_RELAXED);
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    __atomic_store_n(&c->seed, x, __ATOMIC_RELAXED);
    return x % 1000 < c->disk_per_mille;
}

/* The error this call is to fail with, 0 for none. */
static int failing(uint32_t op, const char *path)
{
    struct control *c = wanted();
    if (!c)
        return 0;
    if (c->delay_us && op & (OP_WRITE | OP_SYNC) && is_ours(c, path))
        usleep(c->delay_us);
    if (!c->disk_errno || !(c->disk_ops & op) || !is_ours(c, path) || !is_chosen(c))
        return 0;
    __atomic_add_fetch(&c->disk_hits, 1, __ATOMIC_RELAXED);
    return c->disk_errno;
}

static int is_armed(uint32_t op)
{
    struct control *c = wanted();
    return c && (((c->disk_errno || c->delay_us) && (c->disk_ops & op || c->delay_us))
                 || c->moment_ops & op);
}

static void moment(uint32_t op, const char *path, uint32_t before)
{
    struct control *c = wanted();
    if (!c || !(c->moment_ops & op) || c->moment_before != before)
        return;
    if (!is_ours(c, path) || !ends_in(path, c->moment_end))
        return;
    if (__atomic_sub_fetch(&c->moment_countdown, 1, __ATOMIC_SEQ_CST) != 0)
        return;
    int32_t nobody = 0;
    __atomic_compare_exchange_n(&c->moment_pid, &nobody, getpid(), 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    kill(getpid(), SIGSTOP);
}

/* --- calls that have a descriptor ---------------------------------------------------------- */

#define FAIL_IF(op, path, how) \
    do { \
        int error_ = failing(op, path); \
        if (error_) { \
            how; \
            errno = error_; \
            return -1; \
        } \
    } while (0)

#define PATH_IF_ARMED(op, fd) \
    char path_[4096] = ""; \
    int armed_ = is_armed(op); \
    if (armed_) \
        path_of(fd, path_, sizeof path_)

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    PATH_IF_ARMED(OP_WRITE, fd);
    if (armed_)
        FAIL_IF(OP_WRITE, path_, if (control->disk_torn) (void)!real(fd, data, size / 2));
    return real(fd, data, size);
}

#define PWRITE(name, off) \
    ssize_t name(int fd, const void *data, size_t size, off at) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_WRITE, fd); \
        if (armed_) \
            FAIL_IF(OP_WRITE, path_, if (control->disk_torn) (void)!real(fd, data, size / 2, at)); \
        return real(fd, data, size, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, off) \
    ssize_t name(int fd, const struct iovec *parts, int count, off at) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_WRITE, fd); \
        if (armed_) \
            FAIL_IF(OP_WRITE, path_, if (control->disk_torn) (void)!real(fd, parts, 1, at)); \
        return real(fd, parts, count, at); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, off) /* what Python's os.pwritev calls */ \
    ssize_t name(int fd, const struct iovec *parts, int count, off at, int flags) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_WRITE, fd); \
        if (armed_) \
            FAIL_IF(OP_WRITE, path_, if (control->disk_torn) (void)!real(fd, parts, 1, at, flags)); \
        return real(fd, parts, count, at, flags); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
{
    REAL(copy_file_range);
    PATH_IF_ARMED(OP_WRITE, out);
    if (armed_)
        FAIL_IF(OP_WRITE, path_, );
    return real(in, from, out, to, size, flags);
}

#define FALLOCATE(name, off) \
    int name(int fd, off from, off size) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_WRITE, fd); \
        int error = armed_ ? failing(OP_WRITE, path_) : 0; \
        return error ? error : real(fd, from, size); \
    }
FALLOCATE(posix_fallocate, off_t)
FALLOCATE(posix_fallocate64, off64_t)

#define READ_AT(name, off) \
    ssize_t name(int fd, void *data, size_t size, off at) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_READ, fd); \
        if (armed_) \
            FAIL_IF(OP_READ, path_, ); \
        return real(fd, data, size, at); \
    }
READ_AT(pread, off_t)
READ_AT(pread64, off64_t)

#define READV_AT(name, off) \
    ssize_t name(int fd, const struct iovec *parts, int count, off at, int flags) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_READ, fd); \
        if (armed_) \
            FAIL_IF(OP_READ, path_, ); \
        return real(fd, parts, count, at, flags); \
    }
READV_AT(preadv2, off_t)
READV_AT(preadv64v2, off64_t)

#define SYNC(name) \
    int name(int fd) \
    { \
        REAL(name); \
        PATH_IF_ARMED(OP_SYNC, fd); \
        if (armed_) \
            FAIL_IF(OP_SYNC, path_, ); \
        moment(OP_SYNC, path_, 1); \
        int done = real(fd); \
        moment(OP_SYNC, path_, 0); \
        return done; \
    }
SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)

/* --- calls that have a path ---------------------------------------------------------------- */

int rename(const char *from, const char *to)
{
    REAL(rename);
    FAIL_IF(OP_RENAME, to, );
    moment(OP_RENAME, to, 1);
    int done = real(from, to);
    moment(OP_RENAME, to, 0);
    return done;
}

int unlink(const char *path)
{
    REAL(unlink);
    FAIL_IF(OP_UNLINK, path, );
    moment(OP_UNLINK, path, 1);
    int done = real(path);
    moment(OP_UNLINK, path, 0);
    return done;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (!(flags & O_CREAT)) \
            return real(path, flags, mode); \
        FAIL_IF(OP_CREATE, path, ); \
        moment(OP_CREATE, path, 1); \
        int fd = real(path, flags, mode); \
        moment(OP_CREATE, path, 0); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

/* --- the wall clock -------------------------------------------------------------------------- */

int clock_gettime(clockid_t which, struct timespec *into)
{
    REAL(clock_gettime);
    int done = real(which, into);
    struct control *c = control; /* not `wanted`: whoever loads it may ask for the time */
    if (done == 0 && c && c->wall_offset_ns
        && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = into->tv_sec * 1000000000LL + into->tv_nsec + c->wall_offset_ns;
        into->tv_sec = ns / 1000000000LL;
        into->tv_nsec = ns % 1000000000LL;
    }
    return done;
}

time_t time(time_t *into)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    wanted();
}

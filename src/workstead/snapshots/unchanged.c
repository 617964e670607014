/* Find the directories that are unchanged since the last walk; unchanged.py explains why, builds and calls this.
 *
 * A directory is "the same" only when all of it was checked and matched. Any error (deleted, swapped, unreadable, too
 * deep, out of descriptors) means "not the same", and the walker in Python reads the directory.
 *
 * Every step down is openat with O_NOFOLLOW|O_DIRECTORY from a directory that we hold: no link is ever followed. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { NUMBERS = 5, BATCH = 16, MOST_THREADS = 8, NAMES = 1 << 16 };

struct look {
    int top;                    /* the directory that all paths start from */
    uint64_t count;             /* of directories */
    const char **paths;         /* relative to the top; the top itself is "" */
    const uint64_t *keys;       /* device, inode and ctime of each */
    const uint8_t *const *seen; /* the listing of each at the last walk, by pack_sights */
    const uint64_t *sizes;      /* of the listings */
    uint8_t *same;              /* the results */
    int is_exact;               /* whether the ctime of a directory changes with every added or removed name, … */
    dev_t device;               /* … on this device */
    atomic_uint_fast64_t next;
};

/* Neighbours are checked one after the other, so their parent directory stays open. */
struct above {
    int fd;
    size_t length;
    const char *path;
};

struct dirent64 {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t kind;
    char name[];
};

static int open_below(int parent, const char *name, size_t length)
{
    char one[256];
    if (length == 0 || length >= sizeof one)
        return -1;
    memcpy(one, name, length);
    one[length] = 0;
    if (!strcmp(one, ".") || !strcmp(one, ".."))
        return -1;
    return openat(parent, one, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Opened again, not duplicated: duplicated descriptors share the read position of the directory. */
static int open_top(const struct look *look)
{
    return openat(look->top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int open_directory(const struct look *look, struct above *above, const char *path)
{
    if (!*path)
        return open_top(look);
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (above->fd < 0 || above->length != length || memcmp(above->path, path, length)) {
        if (above->fd >= 0)
            close(above->fd);
        above->fd = open_top(look);
        above->path = path;
        above->length = length;
        for (size_t at = 0; above->fd >= 0 && at < length;) {
            const char *end = memchr(path + at, '/', length - at);
            size_t step = end ? (size_t)(end - path) - at : length - at;
            int below = open_below(above->fd, path + at, step);
            close(above->fd);
            above->fd = below;
            at += step + 1;
        }
    }
    const char *name = slash ? slash + 1 : path;
    return above->fd < 0 ? -1 : open_below(above->fd, name, strlen(name));
}

static uint64_t nanoseconds(struct timespec when)
{
    return (uint64_t)when.tv_sec * 1000000000u + (uint64_t)when.tv_nsec; /* modulo 2^64, as in Python */
}

/* The listing of a directory: the number of names, five numbers for each, then the names, each terminated by a 0.
 * In the order of the disk, which is stable while nothing changes. */
struct sights {
    uint64_t left;
    const uint8_t *numbers, *name, *end;
};

static int read_sights(struct sights *sights, const uint8_t *seen, uint64_t size)
{
    uint64_t count;
    if (size < sizeof count)
        return 0;
    memcpy(&count, seen, sizeof count);
    if (count > (size - sizeof count) / (NUMBERS * sizeof count))
        return 0;
    sights->left = count;
    sights->numbers = seen + sizeof count;
    sights->name = sights->numbers + count * NUMBERS * sizeof count;
    sights->end = seen + size;
    return count == 0 || (sights->name < sights->end && !sights->end[-1]);
}

/* Whether the next name is this one, with unchanged metadata. A directory entry has only its type: its content is
 * checked separately. */
static int looks_the_same(int fd, struct sights *sights, const char *name)
{
    struct stat status;
    if (!sights->left || sights->name >= sights->end || strcmp((const char *)sights->name, name))
        return 0;
    if (fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW))
        return 0;
    uint64_t now[NUMBERS] = {0, 0, 0, 0, S_IFDIR};
    if (!S_ISDIR(status.st_mode)) {
        now[0] = status.st_ino;
        now[1] = nanoseconds(status.st_ctim);
        now[2] = nanoseconds(status.st_mtim);
        now[3] = (uint64_t)status.st_size;
        now[4] = status.st_mode;
    }
    if (memcmp(sights->numbers, now, sizeof now))
        return 0;
    sights->numbers += sizeof now;
    sights->name += strlen(name) + 1;
    sights->left--;
    return 1;
}

/* The directory's own ctime shows that no name was added or removed. */
static int all_look_the_same(int fd, struct sights *sights)
{
    while (sights->left && sights->name < sights->end)
        if (!looks_the_same(fd, sights, (const char *)sights->name))
            return 0;
    return !sights->left && sights->name == sights->end;
}

static int lists_the_same(int fd, struct sights *sights, char *buffer)
{
    for (;;) {
        long got = syscall(SYS_getdents64, fd, buffer, (size_t)NAMES);
        if (got <= 0)
            return got == 0 && !sights->left && sights->name == sights->end;
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(buffer + at);
            at += entry->length;
            const char *is = entry->name;
            if (is[0] == '.' && (!is[1] || (is[1] == '.' && !is[2])))
                continue;
            if (!looks_the_same(fd, sights, is))
                return 0;
        }
    }
}

/* Local file systems of the kernel. A merged file system (overlay, FUSE) or a network file system may show a new name
 * without a new ctime: there every directory is listed. */
static int is_exact(int fd)
{
    static const uint32_t known[] = {
        0xef53,     /* ext4 */
        0x58465342, /* xfs */
        0x9123683e, /* btrfs */
        0x01021994, /* tmpfs */
        0xf2f52010, /* f2fs */
    };
    struct statfs found;
    if (fstatfs(fd, &found))
        return 0;
    for (size_t each = 0; each < sizeof known / sizeof *known; each++)
        if ((uint32_t)found.f_type == known[each])
            return 1;
    return 0;
}

static int is_same(const struct look *look, struct above *above, uint64_t number, char *buffer)
{
    const uint64_t *key = look->keys + number * 3;
    struct stat status;
    struct sights sights;
    int fd = open_directory(look, above, look->paths[number]);
    if (fd < 0)
        return 0;
    int same = !fstat(fd, &status) && status.st_dev == key[0] && status.st_ino == key[1] &&
               nanoseconds(status.st_ctim) == key[2] && read_sights(&sights, look->seen[number], look->sizes[number]);
    if (same && look->is_exact && status.st_dev == look->device)
        same = all_look_the_same(fd, &sights);
    else if (same)
        same = lists_the_same(fd, &sights, buffer);
    close(fd);
    return same;
}

static void *look_at_some(void *shared)
{
    struct look *look = shared;
    struct above above = {-1, 0, ""};
    char *buffer = malloc(NAMES);
    while (buffer) {
        uint64_t number = atomic_fetch_add(&look->next, BATCH), end = number + BATCH;
        if (number >= look->count)
            break;
        for (; number < end && number < look->count; number++)
            look->same[number] = (uint8_t)is_same(look, &above, number, buffer);
    }
    if (above.fd >= 0)
        close(above.fd);
    free(buffer);
    return 0;
}

/* `paths` are concatenated, each terminated by a 0. `same` is zeroed by the caller. */
void workstead_unchanged_2(int top, uint64_t count, const char *paths, const uint64_t *keys, const uint8_t *const *seen,
                        const uint64_t *sizes, uint8_t *same, int threads)
{
    struct look look = {.top = top, .count = count, .keys = keys, .seen = seen, .sizes = sizes, .same = same};
    pthread_t others[MOST_THREADS];
    int started = 0;
    sigset_t all, before;
    struct stat status;
    look.paths = malloc(count * sizeof *look.paths + 1);
    if (!look.paths)
        return;
    for (uint64_t number = 0; number < count; number++, paths += strlen(paths) + 1)
        look.paths[number] = paths;
    look.is_exact = is_exact(top) && !fstat(top, &status);
    look.device = look.is_exact ? status.st_dev : 0;
    sigfillset(&all); /* signals are handled by the thread that runs Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < threads - 1 && started < MOST_THREADS && !pthread_create(others + started, 0, look_at_some, &look))
        started++;
    pthread_sigmask(SIG_SETMASK, &before, 0);
    look_at_some(&look);
    while (started)
        pthread_join(others[--started], 0);
    free(look.paths);
}

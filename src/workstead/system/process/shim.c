/* The last program before the command inside a sandbox. See shim.py for why it exists and for the report it writes.
 *
 * Freestanding: no libc, no writable data, no relocation. The code is linked at a fixed address, and shim.py appends
 * the table of one run to it and puts an ELF header before it:
 *
 *     u64 first descriptor to close
 *     u64 count, then that many {u64 resource, u64 soft limit, u64 hard limit}
 *     u64 size of the Landlock ruleset attribute (0: no Landlock), then 24 bytes of attribute
 *     {u64 access rights, string path} for each Landlock rule, then u64 0
 *     u64 count of seccomp instructions (0: no filter), then 8 bytes each
 *     {string path} for each candidate program, then u64 0
 *
 * A string is a u64 length, padded to 8, and then that many bytes with at least one zero byte at the end.
 */

typedef unsigned long u64; /* both machines are LP64 */
typedef unsigned int u32;

enum stage { READY, RESOURCE_LIMIT, LANDLOCK_RULESET, LANDLOCK_RULE, LANDLOCK, COMMAND }; /* STAGES in shim.py */

enum {
    REPORT = 3,             /* the descriptor of the report */
    FAILED = 125,           /* the exit code when there is no command */
    NO_SUCH_FILE = -2,      /* -ENOENT */
    NOT_A_DIRECTORY = -20,  /* -ENOTDIR */
    HERE = -100,            /* AT_FDCWD */
    PATH_ONLY = 0x280000,   /* O_PATH | O_CLOEXEC */
    SET_FLAGS = 2,          /* F_SETFD */
    CLOSE_ON_EXEC = 1,      /* FD_CLOEXEC */
    SET_SECCOMP = 22,       /* PR_SET_SECCOMP */
    FILTER = 2,             /* SECCOMP_MODE_FILTER */
    PATH_BENEATH = 1,       /* LANDLOCK_RULE_PATH_BENEATH */
};

/* System call numbers; the last four are the same on every machine. */
#if defined(__x86_64__)
enum { WRITE = 1, CLOSE = 3, EXECVE = 59, FCNTL = 72, PRCTL = 157, SETRLIMIT = 160, EXIT_GROUP = 231, OPENAT = 257 };
#elif defined(__aarch64__)
enum { FCNTL = 25, OPENAT = 56, CLOSE = 57, WRITE = 64, EXIT_GROUP = 94, SETRLIMIT = 164, PRCTL = 167, EXECVE = 221 };
#else
#error "no system call numbers for this machine"
#endif
enum { CLOSE_RANGE = 436, LANDLOCK_CREATE_RULESET = 444, LANDLOCK_ADD_RULE = 445, LANDLOCK_RESTRICT_SELF = 446 };

/* The kernel starts a program with argc, argv and envp on the stack, and no return address. */
#if defined(__x86_64__)
__asm__(".section .text.start, \"ax\"\n.globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall enter\n.text\n");
#else
__asm__(".section .text.start, \"ax\"\n.globl _start\n_start: mov x0, sp\nbl enter\n.text\n");
#endif

extern const char table[]; /* the end of the code, from shim.ld */

/* Return the result of a system call; an error is its negative number. */
static long call(long number, u64 a, u64 b, u64 c, u64 d)
{
#if defined(__x86_64__)
    long result;
    register u64 fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long which __asm__("x8") = number;
    register u64 first __asm__("x0") = a;
    register u64 second __asm__("x1") = b;
    register u64 third __asm__("x2") = c;
    register u64 fourth __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(which), "r"(second), "r"(third), "r"(fourth) : "memory");
    return (long)first;
#endif
}

static void report(enum stage stage, long error)
{
    u32 pair[2] = {stage, (u32)-error};
    call(WRITE, REPORT, (u64)pair, sizeof pair, 0);
}

/* Report the stage that failed, and end. */
static void __attribute__((noreturn)) fail(enum stage stage, long error)
{
    report(stage, error);
    for (;;)
        call(EXIT_GROUP, FAILED, 0, 0, 0);
}

static void check(enum stage stage, long result)
{
    if (result < 0)
        fail(stage, result);
}

static u64 take(const char **at)
{
    u64 number = *(const u64 *)*at;
    *at += sizeof number;
    return number;
}

static const char *take_string(const char **at, u64 length)
{
    const char *text = *at;
    *at += length;
    return text;
}

static void set_limits(const char **at)
{
    for (u64 count = take(at); count; count--) {
        u64 resource = take(at);
        check(RESOURCE_LIMIT, call(SETRLIMIT, resource, (u64)*at, 0, 0));
        *at += 16;
    }
}

/* Restrict the process by Landlock; a path that does not exist gets no rule. */
static void set_landlock(const char **at)
{
    u64 size = take(at);
    const char *attribute = *at;
    *at += 24;
    long ruleset = 0;
    if (size)
        check(LANDLOCK_RULESET, ruleset = call(LANDLOCK_CREATE_RULESET, (u64)attribute, size, 0, 0));
    for (u64 access; (access = take(at));) {
        u64 length = take(at);
        long path = call(OPENAT, HERE, (u64)take_string(at, length), PATH_ONLY, 0);
        if (path < 0)
            continue;
        struct { u64 access; int parent; } __attribute__((packed)) rule = {access, (int)path};
        check(LANDLOCK_RULE, call(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, (u64)&rule, 0));
        call(CLOSE, path, 0, 0, 0);
    }
    if (size) {
        check(LANDLOCK, call(LANDLOCK_RESTRICT_SELF, ruleset, 0, 0, 0));
        call(CLOSE, ruleset, 0, 0, 0);
    }
}

static void set_filter(const char **at)
{
    u64 count = take(at);
    struct { unsigned short length; const char *steps; } filter = {(unsigned short)count, *at};
    if (count)
        check(LANDLOCK, call(PRCTL, SET_SECCOMP, FILTER, (u64)&filter, 0));
    *at += 8 * count;
}

void __attribute__((noreturn)) enter(const u64 *stack)
{
    const char *at = table;
    call(FCNTL, REPORT, SET_FLAGS, CLOSE_ON_EXEC, 0); /* the report ends where the command begins */
    call(CLOSE_RANGE, take(&at), (u32)-1, 0, 0);
    set_limits(&at);
    set_landlock(&at);
    set_filter(&at);
    report(READY, 0);
    /* Try each candidate with our arguments but the first. The error that counts is any other than "no such file". */
    long error = NO_SUCH_FILE;
    for (u64 length; (length = take(&at));) {
        const char *path = take_string(&at, length);
        long result = call(EXECVE, (u64)path, (u64)(stack + 2), (u64)(stack + 2 + stack[0]), 0);
        if (result != NO_SUCH_FILE && result != NOT_A_DIRECTORY)
            error = result;
    }
    fail(COMMAND, error);
}

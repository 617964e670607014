"""Ways out. Each says ESCAPED when it got there, inside the wall or as a plain process without one.

`twin` says who the plain process is: `same` as the one behind the sandbox, `root` where only root could do it at all,
or `unshare`, root in namespaces of its own, so that the success does no harm to the machine. All are harmless when they
succeed: they open what they could write, give values that the kernel refuses after the right was checked, or act on
things that the scene put there.
"""

from __future__ import annotations

from typing import NamedTuple


class Attempt(NamedTuple):
    name: str
    script: str
    twin: str = "same"
    optional: str = ""  # why a host may be unable to show the twin


def sh(name: str, script: str, twin: str = "same", optional: str = "") -> Attempt:
    return Attempt(name, script, twin, optional)


def py(name: str, body: str, twin: str = "same", optional: str = "") -> Attempt:
    return Attempt(name, f"/usr/bin/python3 -I - <<'PY'\n{_PRELUDE}\n{body}\nPY", twin, optional)


def call(name: str, body: str, twin: str = "same", optional: str = "") -> Attempt:
    """A system call that must not succeed."""
    return py(name, f"r = libc.syscall({body})\nprint('ESCAPED' if r >= 0 else 'contained', r, err())", twin, optional)


def checked(name: str, body: str, twin: str = "root", optional: str = "") -> Attempt:
    """A system call with nonsense in it: an answer other than 'not permitted' means the right was there."""
    script = (
        f"r = libc.syscall({body})\nprint('contained' if err() in (errno.EPERM, errno.ENOSYS) else 'ESCAPED', r, err())"
    )
    return py(name, script, twin, optional)


_PRELUDE = """
import ctypes, errno, fcntl, os, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
err = ctypes.get_errno
def gone(f):
    try: f()
    except OSError as e: print('contained', e)
    else: print('ESCAPED')
"""

# Runs many attempts in one process, each in a fork of its own: to start Python anew is what costs most in a machine
# that is emulated. Takes (name, script) pairs as JSON, prints {name: output}.
IN_ONE_GO = """
import json, os, subprocess, sys, tempfile
def run(script):
    opening, _, rest = script.partition("\\n")
    if not opening.startswith("/usr/bin/python3 -I - <<"):
        return subprocess.run(["/bin/bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=50).stdout.decode(errors="replace")
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                exec(compile(rest.rpartition("\\nPY")[0], "attempt", "exec"), {"__name__": "__main__"})
            except BaseException as error:
                print(repr(error))
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        return file.read().decode(errors="replace")
with open(sys.argv[1]) as file:
    attempts = json.load(file)
os.unlink(sys.argv[1])  # it holds the words that they look for
print(json.dumps({name: run(script) for name, script in attempts}))
"""

FILES = (
    sh("read a secret by its path", "grep -q {SECRET_TEXT} {SECRET} && echo ESCAPED"),
    sh("read a secret through /proc/*/root", "grep -qs {SECRET_TEXT} /proc/*/root{SECRET} && echo ESCAPED"),
    sh("read a secret through a link", "ln -sf {SECRET} lnk; grep -q {SECRET_TEXT} lnk && echo ESCAPED"),
    sh("read a secret through a hard link", "ln {SECRET} hard && grep -q {SECRET_TEXT} hard && echo ESCAPED"),
    py(
        "climb out of the working directory",
        "d = os.open('.', os.O_PATH)\n"
        "gone(lambda: os.close(os.open('../' * 30 + '{SECRET}'.lstrip('/'), os.O_RDONLY, dir_fd=d)))",
    ),
    sh(
        "climb through /proc/self/cwd", "cat /proc/self/cwd/../../../secret.txt | grep -q {SECRET_TEXT} && echo ESCAPED"
    ),
    sh("see that a secret exists", "[ -e {SECRET} ] && echo ESCAPED"),
    sh("read another workspace", "grep -q {OTHER_TEXT} {OTHER}/note.txt && echo ESCAPED"),
    sh("read another workspace beside this one", "grep -qr {OTHER_TEXT} ../.. && echo ESCAPED"),
    sh("read the product's token", "grep -q {TOKEN_TEXT} {STATE}/token && echo ESCAPED"),
    sh("list the product's home", "ls {BASE} && echo ESCAPED"),
    sh("find the run's own directory", "ls {RUN} && echo ESCAPED"),
    sh("read the password hashes", "head -c1 /etc/shadow && echo ESCAPED", "root"),
    sh("read the host's users", "grep -q ^daemon: /etc/passwd && echo ESCAPED"),
    sh("read logs and homes", "ls -A /root /var/log 2>/dev/null | grep -q . && echo ESCAPED"),
    sh("read the kernel's view of the machine", "ls /sys/kernel /sys/class/net | grep -q . && echo ESCAPED"),
    sh("see the host's mounts", "grep -q 'cgroup\\|/sys ' /proc/self/mountinfo && echo ESCAPED"),
    py(
        "open a secret by its handle",
        "m = os.open('.', os.O_RDONLY)\n"
        "h = ctypes.create_string_buffer(bytes.fromhex('{HANDLE}'), 200)\n"
        "r = libc.open_by_handle_at(m, h, 0)\n"
        "print('ESCAPED' if r >= 0 and b'{SECRET_TEXT}' in os.read(r, 99) else 'contained', err())",
        "root",
    ),
    sh("overwrite a secret", "echo x > {SECRET} && echo ESCAPED"),
    sh(
        "remove a secret",
        "rm -f {SECRET}; mv {SECRET} /tmp/x-{NONCE}; [ -d {BASE} ] && [ ! -e {SECRET} ] && echo ESCAPED",
    ),
    sh("write to another workspace", "echo x > {OTHER}/pwned && echo ESCAPED"),
    sh("write to the product's state", "echo x > {STATE}/pwned && echo ESCAPED"),
    sh("write to the system", "touch /usr/aw-{NONCE} && echo ESCAPED && rm /usr/aw-{NONCE}", "root"),
    sh("write to /etc", "touch /etc/aw-{NONCE} && echo ESCAPED && rm /etc/aw-{NONCE}", "root"),
    sh("write to the root directory", "touch /aw-{NONCE} && echo ESCAPED && rm /aw-{NONCE}", "root"),
    sh("write to the product's records in the workspace", "echo x > ../.aw/run.json && echo ESCAPED"),
    sh("add to the product's records", "touch ../.aw/new && echo ESCAPED"),
    sh("replace the product's records", "mv ../.aw ../.old && mkdir ../.aw && echo ESCAPED"),
    sh("remove the product's records", "rm -rf ../.aw; [ ! -e ../.aw/run.json ] && echo ESCAPED"),
    sh("change the mode of the product's records", "chmod 777 ../.aw && echo ESCAPED"),
    sh("make a device", "mknod dev c 1 3 && echo ESCAPED", "root"),
    sh("make a device in /tmp", "mknod /tmp/dev-{NONCE} b 7 0 && echo ESCAPED && rm /tmp/dev-{NONCE}", "root"),
    sh("leave a set-uid program", "cp /bin/true su && chmod 4755 su && [ -u su ] && echo ESCAPED"),
    py(
        "create a set-uid program in one go",
        "os.umask(0)\n"
        "gone(lambda: os.open('su2', os.O_CREAT | os.O_WRONLY, 0o4755))\n"
        "os.path.exists('su2') or sys.exit()\nprint('kept' if os.stat('su2').st_mode & stat.S_ISUID else 'dropped')",
    ),
    py("give a file to root", "open('mine', 'w').close()\ngone(lambda: os.chown('mine', 0, 0))", "root"),
    sh("use a set-uid program", "../idroot | grep -q 'euid=0\\|uid=0' && echo ESCAPED"),
)

PROCESSES = (
    sh("see a host process", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q {MARKER_PATTERN} && echo ESCAPED"),
    sh("read a host process's environment", "cat /proc/[0-9]*/environ | grep -qa {ENV_TEXT} && echo ESCAPED"),
    sh("look a host process up", "kill -0 {HOST_PID} && echo ESCAPED"),
    sh("kill a host process", "kill -9 {HOST_PID} && echo ESCAPED"),
    py("trace a host process", "r = libc.ptrace(16, {HOST_PID}, 0, 0)\nprint('ESCAPED' if r == 0 else 'contained')"),
    py("write a host process's memory", "gone(lambda: open('/proc/{HOST_PID}/mem', 'r+b'))"),
    py("write the memory of process 1", "gone(lambda: open('/proc/1/mem', 'r+b'))", "unshare"),
    sh("read the environment of process 1", "[ -r /proc/1/environ ] && cat /proc/1/environ && echo ESCAPED", "unshare"),
    sh("read the descriptors of process 1", "readlink /proc/1/fd/0 && echo ESCAPED", "unshare"),
    py("be traced", "r = libc.ptrace(0, 0, 0, 0)\nprint('ESCAPED' if r == 0 else 'contained')"),
    py(
        "read a process's memory by system call",
        "b = ctypes.create_string_buffer(8)\n"
        "v = struct.pack('QQ', ctypes.addressof(b), 8)\n"
        "r = libc.process_vm_readv(os.getpid(), v, 1, v, 1, 0)\nprint('ESCAPED' if r >= 0 else 'contained', err())",
    ),
    call("take a descriptor from a process", "438, os.pidfd_open(os.getpid()), 0, 0"),
    py(
        "read shared memory of the host by its key",
        "libc.shmat.restype = ctypes.c_void_p\n"
        "s = libc.shmget({IPC_KEY}, 0, 0)\nprint('ESCAPED' if s >= 0 else 'contained', err())",
    ),
    sh("read shared memory of the host by its name", "grep -q {SECRET_TEXT} {SHM} && echo ESCAPED"),
)

KERNEL = (
    sh("change the core pattern", "(exec 3>/proc/sys/kernel/core_pattern) && echo ESCAPED", "root"),
    sh("read the kernel's log device", "(exec 3</dev/kmsg) && echo ESCAPED", "root"),
    sh(
        "reach a disk",
        "for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/loop0; do (exec 3<$d) && echo ESCAPED; done",
        "root",
    ),
    sh("reach the control groups", "[ -w /sys/fs/cgroup ] && echo ESCAPED", "root"),
    sh(
        "reach devices that drive the host",
        "for d in /dev/fuse /dev/kvm /dev/net/tun /dev/loop-control; do (exec 3<>$d) && echo ESCAPED; done",
        "root",
    ),
    sh("mount a tmpfs", "mkdir -p m && mount -t tmpfs none m && echo ESCAPED", "unshare"),
    sh("mount over the product's records", "mount --bind . ../.aw && echo ESCAPED", "unshare"),
    sh("make a read-only mount writable", "mount -o remount,rw,bind / / && echo ESCAPED", "unshare"),
    sh("unmount", "mount --bind . . ; umount . && echo ESCAPED", "unshare"),
    call("open a new file system", "430, b'tmpfs', 0", "root"),
    call("copy a mount", "428, -100, b'/', 1", "unshare"),
    call("change a mount", "442, -100, b'/', 0, bytes(32), 32", "unshare"),
    py("change the root", "gone(lambda: os.chroot('.'))", "root"),
    sh("make a user namespace", "unshare -Ur true && echo ESCAPED"),
    sh("mount in a user namespace", "unshare -Urm sh -c 'mount -t tmpfs none /tmp && echo ESCAPED'"),
    py(
        "make a user namespace by clone",
        "r = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if r == 0: os._exit(0)\nprint('ESCAPED' if r > 0 else 'contained', err())",
    ),
    py(
        "make a user namespace by clone3",
        "a = struct.pack('<8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\n"
        "r = libc.syscall(435, a, len(a))\n"
        "if r == 0: os._exit(0)\nprint('ESCAPED' if r > 0 else 'contained', err())",
    ),
    py(
        "enter the namespaces of process 1",
        "n = os.open('/proc/1/ns/net', 0)\nr = libc.setns(n, 0)\nprint('ESCAPED' if r == 0 else 'contained', err())",
        "unshare",
    ),
    call("make a time namespace", "272, 0x80", "root"),
    py("become root", "gone(lambda: os.setresuid(0, 0, 0))", "root"),
    py("join root's group", "gone(lambda: os.setgroups([0]))", "root"),
    sh("have a capability", "grep -q 'CapBnd:.*[1-9a-f]' /proc/self/status && echo ESCAPED", "root"),
    py("rename the machine", "gone(lambda: socket.sethostname('pwned'))", "unshare"),
    call("add a key", "248, b'user', b'aw-test', b'x', 1, -3"),
    call("read the session keyring", "250, 0, -3, 1"),
    call("use io_uring", "425, 1, bytes(120)", "root", "io_uring may be switched off"),
    call("use userfaultfd", "323, 0", "root", "userfaultfd may be missing"),
    call(
        "load a bpf program",
        "321, 0, struct.pack('<IIIII', 2, 4, 4, 1, 0) + bytes(100), 72",
        "root",
        "bpf may be missing",
    ),
    call(
        "watch the processor",
        "298, struct.pack('<IIQ', 1, 128, 0) + bytes(112), 0, -1, -1, 0",
        "root",
        "perf may be missing",
    ),
    call("watch file systems", "300, 0, 0", "root", "fanotify may be missing"),
    call("compare processes", "312, os.getpid(), os.getpid(), 0, 0, 0", "same", "kcmp may be missing"),
    call("read the kernel's log", "103, 3, ctypes.create_string_buffer(64), 64", "root"),
    checked("restart the machine", "169, 0, 0, 0, 0"),
    checked("add swap", "167, b'/nonexistent', 0"),
    checked("set the clock", "227, 0, struct.pack('<qq', 0, -1)"),
    checked("set limits on disks", "179, -1, 0, 0, 0", optional="quotas may be missing"),
    py("change the processor's view", "r = libc.personality(0x0400000)\nprint('ESCAPED' if r >= 0 else 'contained')"),
)

NETWORK = (
    sh("reach a port of the host", "timeout 3 bash -c 'echo hi > /dev/tcp/127.0.0.1/{PORT}' && echo ESCAPED"),
    sh("reach a port of the host by name", "timeout 3 bash -c 'echo hi > /dev/tcp/localhost/{PORT}' && echo ESCAPED"),
    py(
        "send a datagram to the host",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(('127.0.0.1', {UDP_PORT}))\n"
        "s.send(b'x'); time.sleep(.05); gone(lambda: s.send(b'x'))",
    ),
    py("reach a socket of the host by its path", "s = socket.socket(socket.AF_UNIX)\ngone(lambda: s.connect('{API}'))"),
    py(
        "reach an abstract socket of the host",
        "s = socket.socket(socket.AF_UNIX)\ngone(lambda: s.connect('\\0{ABSTRACT}'))",
    ),
    sh("see sockets of the host", "grep -q {ABSTRACT} /proc/net/unix && echo ESCAPED"),
    py("open a raw socket", "gone(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))", "root"),
    py("open a packet socket", "gone(lambda: socket.socket(17, socket.SOCK_RAW, 0))", "root"),
    py("listen to the kernel's device events", "gone(lambda: socket.socket(16, socket.SOCK_RAW, 15))"),
    py(
        "open a socket to the hypervisor",
        "gone(lambda: socket.socket(40, socket.SOCK_STREAM, 0))",
        "root",
        "vsock may be missing",
    ),
    py(
        "see a network device",
        "print('ESCAPED' if any(n != 'lo' for _, n in socket.if_nameindex()) else 'contained')",
        "same",
        "this machine may have no network",
    ),
    sh(
        "reach a cloud's metadata address",
        "command -v ip >/dev/null && [ $(id -u) = 0 ] && { ip link set lo up; ip addr add 169.254.169.254/32 dev lo; "
        "/usr/bin/python3 -m http.server -b 169.254.169.254 8080 >/dev/null 2>&1 & sleep 1; }; "
        "timeout 3 bash -c 'echo > /dev/tcp/169.254.169.254/8080' && echo ESCAPED; kill $! 2>/dev/null",
        "unshare",
        "needs the program ip",
    ),
)

ATTEMPTS = FILES + PROCESSES + KERNEL + NETWORK

"""System calls and kernel interfaces: mounts, namespaces, cgroups, landlock, seccomp, openat2."""

"""Copy-on-write views: layers, stacks, mounts and forks."""

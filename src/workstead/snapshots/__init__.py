"""How a state is kept: the object store, the walker, trees, restore, diff and merge.

    objects  packs  collect     bytes by digest, written once, verified, collected
    entries  trees              what a directory is; many layers seen as one
    walker   cache  take        the live files become a tree; only what changed is read
    unchanged                   (partly in C) which directories need no walker at all
    folders  hands  restore     a tree becomes the live files again; only what differs is written
    lines    renames  patch     what changed between two states, for people and for `git apply`
    diff
    merge    apply  commit      what changed, given back: to a folder or to a branch
    retain                      which snapshots may go

Nothing here knows the event log, runs a program of the agent's, or opens a path that an agent could have swapped:
every step down is `openat` with O_NOFOLLOW from a directory that we hold.
"""

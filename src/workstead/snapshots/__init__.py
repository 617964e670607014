"""Snapshots: the object store, the directory walker, trees, restore, diff and merge.

    objects  packs  gc              content-addressed objects: written once, verified by digest, garbage-collected
    entries  trees                  directory entries; several layers read as one tree
    walker  cache  take             read the live files into a tree; only changed files are read
    unchanged                       (partly in C) find the directories that the walker can skip
    folders  tree_writer  restore   write a tree back to the live files; only differences are written
    text_diff  renames  patch       changes between two states, for people and for `git apply`
    diff
    merge  apply  commit            merge changes into the origin: a folder or a branch
    retain                          retention: select the snapshots that may be deleted

No module here uses the event log, runs a program of the agent, or opens a path that an agent could have swapped: every
step down is `openat` with O_NOFOLLOW from a directory descriptor that we hold.
"""

"""Archives: one self-verifying file with a workspace's files, snapshots and history.

    headers            the few tar headers that we write, and the only ones that we read
    flatten            merge a state with its lower layers, so that it is independent of this machine
    write              write the present state, then the objects of other states, then a manifest with all digests
    read               read in one pass: check every name, size, digest and link of the hash chain
    trees              validate directory objects of an untrusted archive
    extract            write checked content as files and objects
    places             location of an archive: a file, or an object in a bucket

The file is a tar in pax format, compressed with zstd; any tar can unpack it. See docs/design/archive-format.md. No
module here uses the event log or runs a program.
"""

"""How a workspace travels: one file with its files, its states and its history, that proves itself.

    headers            the few tar headers that we write, and the only ones that we read
    flatten            a state without the layers below it, so that it means the same on another machine
    write              the present state, then what other states need, then a manifest with the digest of everything
    read               the same in one pass: every name, size, digest and link of the chain is checked as it comes
    trees              what a directory of a state may be that a stranger hands us
    extract            what `read` has found good becomes files and objects
    places             where an archive is: a file, or an object in a bucket

The file is a tar in pax format, compressed with zstd; any tar can unpack it. docs/design/archive-format.md has it all.
Nothing here knows the event log or runs a program.
"""

#!/bin/sh
# aw from a checkout: makes .venv from the hashed lock the first time, and is then exactly `aw`.
set -eu
self=$0
while [ -L "$self" ]; do # called through a link: the checkout is where the link leads
    target=$(readlink "$self")
    case $target in /*) self=$target ;; *) self=${self%/*}/$target ;; esac
done
case $self in */*) here=${self%/*} ;; *) here=. ;; esac
ready="$here/.venv/.run-ready"
if [ ! -e "$ready" ] || [ "$here/requirements/run.txt" -nt "$ready" ] ||
    [ "$here/src/workstead/snapshots/unchanged.c" -nt "$ready" ]; then
    sh "$here/requirements/install" run >&2
fi
case " $* " in # what the doors for programs need is fetched when one of them is opened
    *" serve "* | *" mcp "* | *" s3://"*)
        ready="$here/.venv/.server-ready"
        if [ ! -e "$ready" ] || [ "$here/requirements/server.txt" -nt "$ready" ]; then
            sh "$here/requirements/install" server >&2
        fi
        ;;
esac
exec "$here/.venv/bin/python" -I -c 'from workstead.cli import command; command()' "$@"

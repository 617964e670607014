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
if [ ! -e "$ready" ] || [ "$here/requirements/run.txt" -nt "$ready" ]; then
    sh "$here/requirements/install" run >&2
fi
exec "$here/.venv/bin/python" -I -c 'from carrel.cli import command; command()' "$@"

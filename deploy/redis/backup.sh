#!/bin/sh
# Copies the AOF of a running Redis, which goes on: backup.sh FOLDER TARGET
#
# FOLDER is `dir` of redis.conf, TARGET a folder that does not exist yet; the copy is TARGET/appendonlydir. As Redis's user or root.
# Hard links hold the files that belong together, whatever Redis deletes meanwhile. If it rewrote its AOF between two links, they are
# made again. So no setting of the running Redis is changed, and nothing is left behind if this is killed but the folder of the links.
set -eu
[ $# -eq 2 ] || { echo "usage: backup.sh FOLDER TARGET" >&2; exit 2; }
from=$1/appendonlydir links=$1/backup.links to=$2
[ -d "$from" ] || { echo "backup.sh: there is no $from: is appendonly yes set, and is this the dir of redis.conf?" >&2; exit 1; }
[ ! -e "$to" ] || { echo "backup.sh: $to exists already" >&2; exit 1; }
trap 'rm -rf "$links"' EXIT

is_whole() {
    cmp -s "$links"/*.manifest "$from"/*.manifest || return 1
    for file in $(sed -n 's/^file \([^ ]*\) .*/\1/p' "$links"/*.manifest); do
        [ -e "$links/$file" ] || return 1
    done
}

tries=0
until rm -rf "$links" && cp -al "$from" "$links" 2>/dev/null && is_whole; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { echo "backup.sh: the AOF is rewritten all the time, or $from cannot be linked" >&2; exit 1; }
    sleep 0.5
done
mkdir -p "$to"
cp -a "$links" "$to/appendonlydir.part"
mv "$to/appendonlydir.part" "$to/appendonlydir"

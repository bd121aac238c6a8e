#!/usr/bin/env bash
# Runs a command with a disk that reads and writes so many bytes a second, each for itself:
#   limited.sh DIRECTORY READ WRITE COMMAND...
# Root, and a control group of block devices: io.max, or the throttle of version 1.
set -euo pipefail
directory=$1 read=$2 write=$3
shift 3

device=$(stat -c '%Hd:%Ld' "$directory")
disk=/sys/dev/block/$device
[ ! -e "$disk/partition" ] || device=$(cat "$(readlink -f "$disk")/../dev")

if [ -e /sys/fs/cgroup/blkio/blkio.throttle.read_bps_device ]; then
  group=/sys/fs/cgroup/blkio/zero_bench_$$
  mkdir "$group"
  echo "$device $read" >"$group/blkio.throttle.read_bps_device"
  echo "$device $write" >"$group/blkio.throttle.write_bps_device"
else
  group=/sys/fs/cgroup/zero_bench_$$
  echo +io >/sys/fs/cgroup/cgroup.subtree_control
  mkdir "$group"
  echo "$device rbps=$read wbps=$write" >"$group/io.max"
fi
trap 'rmdir "$group"' EXIT
(
  echo "$BASHPID" >"$group/cgroup.procs"
  exec "$@"
)

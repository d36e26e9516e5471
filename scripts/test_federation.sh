#!/bin/sh
# Three organisations in network namespaces of their own, one of which cannot be dialled, by the commands that people
# use; then the same on loopback, with the same bits. Needs root and iproute2. Usage: scripts/test_federation.sh PYTHON [plain|masked]
set -eu
. "$(dirname "$0")/namespaces.sh"
case $1 in */*) python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1");; *) python=$1;; esac
join 3
export PYTHONPATH="$root/src" OMP_NUM_THREADS=1
sottovoce() { "$python" -c 'from sottovoce.cli import main; main()' -q "$@"; }
inside() { node=$1; shift; ip netns exec "sv-node$node" "$python" "$@"; }

# No answer of a server leaves node 2: whatever listens there at an ordinary port cannot be reached.
ip -n sv-node2 rule add ipproto tcp sport 1-32767 blackhole
listen='import socket, sys; door = socket.create_server(("0.0.0.0", 7003)); print("ready", flush=True); door.accept()'
dial='import socket, sys; socket.create_connection((sys.argv[1], 7003), timeout=2)'
for node in 1 2; do
  inside "$node" -c "$listen" >"$work/door$node" & doors="${doors-} $!"
  until grep -q ready "$work/door$node"; do sleep 0.1; done
done
inside 0 -c "$dial" 10.77.0.11 || { echo "error: node 1 should be dialled, and cannot be" >&2; exit 1; }
inside 0 -c "$dial" 10.77.0.12 2>/dev/null && { echo "error: node 2 can be dialled" >&2; exit 1; }
for pid in $doors; do kill "$pid" 2>/dev/null || true; done

agree() { # FOLDER ADDRESS ADDRESS LINKS: keys, cards and an agreement that all have signed
  mkdir -p "$1" && cd "$1"
  sottovoce identity anna --listen "$2"
  sottovoce identity ben --listen "$3"
  sottovoce identity carla --no-listen
  sottovoce invite anna.card ben.card carla.card --graph ring:3 --rounds 30 --stepsize uniform:0.5/k^0.6 \
    --links "$4" --json >/dev/null
  for name in anna ben carla; do sottovoce join federation.toml --key "$name.key" --yes --json >/dev/null; done
}

train() { # WHERE...: the command in front of each agent, such as `ip netns exec sv-node0`
  pids="" node=0
  for name in anna ben carla; do
    ${1:+ip netns exec "sv-node$node"} "$python" -c 'from sottovoce.cli import main; main()' agent federation.toml \
      --key "$name.key" --patience 120 "$root/tests/integration/organisation.py" "$PWD/$name.safetensors" \
      2>"$PWD/$name.log" &
    pids="$pids $!" node=$((node + 1))
  done
  for pid in $pids; do wait "$pid" || { tail -n 20 "$PWD"/*.log >&2; exit 1; }; done
}

for links in ${2-plain masked}; do
  agree "$work/apart-$links" 10.77.0.10:7001 10.77.0.11:7002 "$links"
  train namespaces
  sottovoce status --key carla.key --verify >/dev/null
  agree "$work/here-$links" 127.0.0.1:17001 127.0.0.1:17002 "$links"
  train ""
  for name in anna ben carla; do
    cmp "$work/apart-$links/$name.safetensors" "$work/here-$links/$name.safetensors"
  done
  echo "$links links: three organisations in namespaces, one of which cannot be dialled, ended with loopback's bits"
done

#!/bin/sh
# Train across three network namespaces with addresses of their own, as across three machines.
# Needs root and iproute2. Usage: scripts/test_network.sh PYTHON
set -eu
. "$(dirname "$0")/namespaces.sh"
join 3
run_agents "$1" "$root/tests/integration/agent.py" training "$work/result" 20 5 -1 none
PYTHONPATH="$root/src" "$1" "$root/tests/integration/compare_network.py" "$work/result" "$nodes"

#!/usr/bin/env bash
# Two hospitals and a server, from certificates to predictions: each hospital has tables
# that never leave it, a second task comes after the run, and the model is used where it
# was trained. You see each command after the name of its site, the progress of both
# runs, the versions of a hospital's model, and its answers for twenty new patients.
# Needs the extra `deploy`; docs/tutorials/twelve-machines.md explains each step.
#
#   examples/three_sites.sh FOLDER
#
# As root on Linux each site is in a network namespace with an address of its own,
# elsewhere all are on localhost. Environment: HOSPITALS (2, their number), NAMESPACES
# (yes; no puts all on localhost), and for localhost PORT (9092) and CONTROL_PORT (9093).
set -euo pipefail
folder=$(mkdir -p "${1:?a new folder for keys, tables and results}" && cd "$1" && pwd)
[[ -z $(ls -A "$folder") ]] || { echo "$folder is not empty" >&2; exit 2; }
port=${PORT:-9092} control=${CONTROL_PORT:-9093}
prefix=fclsites # begins the name of each namespace; the script's process id comes next
hospitals=${HOSPITALS:-2}
mapfile -t numbers < <(seq 0 $((hospitals - 1)))
sites=(server "${numbers[@]/#/hospital-}")
place=localhost reason=
exec 3>&1 # the screen, for what runs with a log of its own

remove() { # end all that runs in a namespace, and remove it with its end of each link
    ip netns pids "$1" | xargs -r kill -KILL 2>/dev/null || true
    ip netns del "$1"
}

namespaces() { # list those of this script, whoever started it
    ip netns list | awk -v begin="$prefix-" 'index($1, begin) == 1 { print $1 }'
}

close() {
    kill $(jobs -rp) 2>/dev/null || true
    wait
    [[ $place == namespaces ]] || return 0
    for name in $(namespaces); do
        [[ $name != "$prefix-$$-"* ]] || remove "$name"
    done
}

trap close EXIT
trap 'exit 143' TERM INT

# ---- three machines

if [[ ${NAMESPACES:-yes} == no ]]; then reason="NAMESPACES=no"
elif ((EUID)); then reason="namespaces take root"
elif ! { command -v ip && command -v nsenter; } >/dev/null; then reason="no ip or no nsenter"
elif ! reason=$(ip netns add "$prefix-$$-server" 2>&1); then :
else place=namespaces
fi
if [[ $place == namespaces ]]; then
    echo "each of ${sites[*]} has a network namespace with an address of its own"
    host=10.78.0.1
    for name in $(namespaces); do # of a script that was killed
        owner=${name#"$prefix-"}
        grep -qs three_sites "/proc/${owner%%-*}/cmdline" || remove "$name"
    done
    inside=(ip -n "$prefix-$$-server")
    "${inside[@]}" link add bridge type bridge
    "${inside[@]}" addr add "$host/24" dev bridge
    "${inside[@]}" link set bridge up
    "${inside[@]}" link set lo up
    for number in "${numbers[@]}"; do
        there=$prefix-$$-hospital-$number
        ip netns add "$there"
        "${inside[@]}" link add "hospital-$number" type veth peer name eth0 netns "$there"
        "${inside[@]}" link set "hospital-$number" master bridge up
        ip -n "$there" addr add "10.78.0.$((number + 2))/24" dev eth0
        ip -n "$there" link set eth0 up
        ip -n "$there" link set lo up
    done
else
    echo "all of ${sites[*]} are on localhost: $reason"
    host=localhost
fi

at() { # become a program at a site, in its folder
    local site=$1
    shift
    echo "$site\$ $*" >&3
    cd "$folder/$site"
    [[ $place == localhost ]] ||
        exec nsenter --net="/var/run/netns/$prefix-$$-$site" "$@" 3>&-
    exec "$@" 3>&-
}

run() { # run a program at a site to its end; a signal ends it, too
    at "$@" &
    wait $!
}

# ---- tables: two illnesses, which the same measurements show in different ways

cd "$folder"
mkdir "${sites[@]}"
python - "$hospitals" <<'END'
import csv
import sys
from pathlib import Path

import numpy as np

SHIFTS = {"task-01": [0.0, 1.5, 1.5, 0.0], "task-02": [0.0, -1.5, 0.0, 1.5]}
COLUMNS = ["age", "pulse", "pressure", "weight"]


def write(path, samples, labels=None):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS + ["label"] * (labels is not None))
        for number, sample in enumerate(samples):
            end = [] if labels is None else [labels[number]]
            writer.writerow([*(f"{value:.3f}" for value in sample), *end])


rng = np.random.default_rng(0)
hospitals = int(sys.argv[1])
for hospital in range(hospitals):
    for task, shift in SHIFTS.items():
        ill = rng.permutation(180) % 2 == 1
        signs = np.where(ill, 1.0, -1.0)[:, None]
        samples = rng.normal(size=(180, 4)) + signs * shift
        # Patients of the last one are the oldest.
        samples[:, 0] += hospital / max(hospitals - 1, 1)
        labels = np.where(ill, "ill", "healthy")
        place = Path(f"hospital-{hospital}")
        # The second task lies elsewhere until it comes.
        data = place / ("data" if task == "task-01" else "later") / task
        data.mkdir(parents=True)
        write(data / "train.csv", samples[:160], labels[:160])
        write(place / f"patients-{task}.csv", samples[160:])
        (place / f"found-{task}.txt").write_text("\n".join(labels[160:]) + "\n")
END

# ---- certificates; a hospital gets the authority and its own key

run server fcl certs certs --host "$host" --clients "$hospitals"
for number in "${numbers[@]}"; do
    mkdir -p "hospital-$number/certs/clients"
    cp server/certs/ca.crt "hospital-$number/certs"
    mv "server/certs/clients/client-$number.key" "hospital-$number/certs/clients"
done

# ---- server and clients

at server fcl server --certs certs --state state --port "$port" \
    --control-port "$control" >server.log 2>&1 &
server=$!

# A client is let in once its key is registered.
until grep -q "registered client-$((hospitals - 1))" server.log; do
    kill -0 "$server" || { cat server.log; exit 1; }
    sleep 0.2
done

for number in "${numbers[@]}"; do
    at "hospital-$number" fcl client --server "$host:$port" --certs certs \
        --number "$number" --data data --state state >"hospital-$number.log" 2>&1 &
done

# ---- a task, and one that comes later

run server fcl run --server "127.0.0.1:$control" --certs certs --scenario local-data \
    --set data.columns=age,pressure,pulse,weight --model mlp --set model.num_features=4 \
    --classes-per-task 2 --clients "$hospitals" --tasks 1 --rounds 1 --epochs 10 --batch-size 10 \
    --output results

for number in "${numbers[@]}"; do # renamed, so that only a whole task counts
    mv "hospital-$number/later/task-02" "hospital-$number/data/task-02"
done
run server fcl run --server "127.0.0.1:$control" --certs certs --resume results --tasks 2

# ---- the model at work, where the patients are

run hospital-0 fcl models state
run hospital-0 fcl predict --state state --task 1 patients-task-02.csv
for number in "${numbers[@]}"; do
    for task in 0 1; do
        name=task-0$((task + 1))
        run "hospital-$number" fcl predict --state state --task "$task" \
            --output-format csv "patients-$name.csv" >"hospital-$number/answers-$name.csv"
    done
done
run server fcl clients --state state

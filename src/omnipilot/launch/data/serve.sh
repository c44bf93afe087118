
# ------------------------------------------------------------------------------------------------
# From here on nothing depends on the request: all of it is in the values above.

set -u -o pipefail
umask 077

# Whoever read this may be gone: the run goes on, and its rows are taken in all the same.
trap : PIPE
say() { printf '%(%FT%T%z)T omnipilot: %s\n' -1 "$*" 2>/dev/null; }
mark() { printf '%s %s\n' "$1" "$(date +%s.%N)" >>"$run_dir/marks"; }

# Until the engine runs, what goes wrong is of this machine and says nothing of the arm.
outcome=not_started
server_pid=''
bench_pid=''
scrape_pid=''
cache=''
port=''

alive() { [[ -n $server_pid ]] && kill -0 "$server_pid" 2>/dev/null; }

stop_server() {
  [[ -n $scrape_pid ]] && kill "$scrape_pid" 2>/dev/null
  [[ -n $bench_pid ]] && kill "$bench_pid" 2>/dev/null
  scrape_pid='' bench_pid=''
  [[ -n $server_pid ]] || return 0
  # The engine's workers are in the server's own process group.
  kill -TERM -- "-$server_pid" 2>/dev/null || kill -TERM "$server_pid" 2>/dev/null
  local waited=0
  while alive && ((waited++ < stop_wait_s * 10)); do sleep 0.1; done
  kill -KILL -- "-$server_pid" 2>/dev/null
  wait "$server_pid" 2>/dev/null
  server_pid=''
}

emit_rows() {
  # Rows are read from the run's folder; what fails here is taken in by 'omnipilot bench ingest'.
  ((${#emit[@]})) || return 0
  if [[ -x ${emit[0]} ]]; then
    env -u LD_PRELOAD "${emit[@]}" || say 'rows not taken in yet: omnipilot bench ingest does it later'
  else
    say "${emit[0]} is not on this node: omnipilot bench ingest takes the rows in later"
  fi
}

finish() {
  local code=$?
  trap - EXIT
  trap '' TERM INT HUP
  local was_up=$server_pid
  stop_server
  [[ -n $was_up ]] && mark serve_end
  printf '%s\n' "$outcome" >"$run_dir/done.part" && mv -f "$run_dir/done.part" "$run_dir/done"
  [[ -n $cache ]] && rm -rf -- "$cache"
  say "ended: $outcome"
  emit_rows
  case $outcome in
    served | benchmarked) code=0 ;;
    *) ((code)) || code=1 ;;
  esac
  exit "$code"
}

# A script that is run again starts clean: what the run before it left stays with its launch in a
# folder of its own, from which rows that were not taken in yet still are.
set_aside() {
  local n=1 name left=()
  [[ -e $run_dir/marks ]] || return 0
  [[ -e $run_dir/done ]] || printf 'interrupted\n' >"$run_dir/done" || return 1
  # The marks go last: as long as they are here, so is an earlier run.
  for name in "$run_dir"/server.log* "$run_dir"/metrics-*.prom \
    "$run_dir"/{bench.json,bench.log,port,job,done,taken,marks}; do
    [[ -e $name ]] && left+=("$name")
  done
  while ! mkdir -- "$run_dir/earlier-$n" 2>/dev/null; do ((n++ < 999)) || return 1; done
  cp -- "$run_dir/launch.json" "$run_dir/earlier-$n/" && mv -- "${left[@]}" "$run_dir/earlier-$n/"
}
mkdir -p -- "$run_dir" || exit 1
set_aside || { say "what is left of an earlier run in $run_dir cannot be set aside"; exit 1; }

trap finish EXIT
trap '[[ $outcome == failed || $outcome == not_started ]] && outcome=stopped; exit 143' TERM INT HUP

# Who started this may hold a lock through it: the script's life is the run's, the server's is not.
lock_fd=${OMNIPILOT_LOCK_FD:-}
[[ -n $lock_fd ]] || exec {lock_fd}</dev/null
unset OMNIPILOT_LOCK_FD

mark script_start
printf '%s\n' "${SLURM_JOB_ID:-local}" >"$run_dir/job"

# --- environment -------------------------------------------------------------------------------

if ((${#modules[@]})); then
  set +u
  if ! type module >/dev/null 2>&1; then
    for init in "${MODULESHOME:-/usr/share/modules}/init/bash" /etc/profile.d/lmod.sh \
      /etc/profile.d/modules.sh; do
      [[ -r $init ]] && . "$init" && break
    done
  fi
  for name in "${modules[@]}"; do
    module load "$name" || { say "module $name cannot be loaded"; exit 1; }
  done
  set -u
fi
if [[ -n $venv ]]; then
  [[ -x $venv/bin/${engine[0]} ]] || { say "${engine[0]} was not found: there is none in $venv/bin"; exit 1; }
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
fi

# Compiled kernels and graphs go to the node's own disk: a shared home is slow and locks badly.
cache=$(mktemp -d "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/omnipilot-XXXXXXXX") || exit 1
export VLLM_CACHE_ROOT=$cache/vllm TRITON_CACHE_DIR=$cache/triton
export TORCHINDUCTOR_CACHE_DIR=$cache/inductor CUDA_CACHE_PATH=$cache/cuda

# The engine takes indices only: int('GPU-…') ends its start (vllm issues 13815, 20939).
device_indices() {
  local device known index uuid out=() devices=()
  IFS=, read -ra devices <<<"$1"
  for device in "${devices[@]}"; do
    case $device in
      MIG-*) printf '0\n'; return 0 ;; # slices cannot be combined: the job's first is the only one
      GPU-*)
        known=''
        while IFS=', ' read -r index uuid; do
          [[ $uuid == "$device"* ]] && known=$index
        done < <(nvidia-smi --query-gpu=index,uuid --format=csv,noheader 2>/dev/null)
        [[ -n $known ]] || return 1
        out+=("$known")
        ;;
      *) out+=("$device") ;;
    esac
  done
  local IFS=,
  printf '%s\n' "${out[*]}"
}
if [[ ${CUDA_VISIBLE_DEVICES:-} == *-* ]]; then
  if indices=$(device_indices "$CUDA_VISIBLE_DEVICES"); then
    say "CUDA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES is $indices"
    export CUDA_VISIBLE_DEVICES=$indices
  else
    say "nvidia-smi does not know $CUDA_VISIBLE_DEVICES: left as it is"
  fi
fi
for name in ${unset_variables[@]+"${unset_variables[@]}"}; do unset "$name"; done
for setting in ${variables[@]+"${variables[@]}"}; do export "${setting?}"; done

# --- where the engine comes from ---------------------------------------------------------------

inside=()
if [[ -n $image ]]; then
  runtime=$(command -v apptainer || command -v singularity) || {
    say 'neither apptainer nor singularity is on this node'
    exit 1
  }
  inside=("$runtime" exec --bind "$run_dir,$cache")
  [[ $vendor == nvidia ]] && inside+=(--nv)
  [[ $vendor == amd ]] && inside+=(--rocm)
  inside+=("$image")
elif ! type -P "${engine[0]}" >/dev/null; then
  say "${engine[0]} was not found on PATH: name where it is with --venv, --image or --module"
  exit 1
fi

# --- a free port -------------------------------------------------------------------------------

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# A lock that the server inherits keeps two of one user's jobs apart, a look keeps off all others.
choose_port() {
  local try candidate folder
  folder=${TMPDIR:-/tmp}/omnipilot-ports-$(id -u)
  mkdir -p -- "$folder" || return 1
  for ((try = 0; try < 200; try++)); do
    candidate=$((port_first + (${SLURM_JOB_ID:-$$} * 37 + ${1:-0} * 101 + try * 13) % port_span))
    exec {port_lock}>"$folder/$candidate" || return 1
    if flock -n "$port_lock" && ! port_taken "$candidate"; then
      port=$candidate
      return 0
    fi
    exec {port_lock}>&-
  done
  return 1
}

# GET of a path: its body; fails unless the answer is 200. No curl: some nodes have none.
http_get() {
  timeout 20 bash -c '
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf "GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" "$2" >&3
    read -r _ status _ <&3 || exit 1
    while IFS= read -r line <&3; do [[ -n ${line%$'"'\\r'"'} ]] || break; done
    cat <&3
    [[ $status == 200 ]]' http_get "$port" "$1" 2>/dev/null
}

# --- the server --------------------------------------------------------------------------------

start_server() {
  setsid ${inside[@]+"${inside[@]}"} "${engine[@]}" serve "$checkpoint" \
    --host "$host" --port "$port" --served-model-name "$model" "${serve_arguments[@]}" \
    >"$run_dir/server.log" 2>&1 {lock_fd}>&- &
  server_pid=$!
  outcome=failed
  mark server_start
  say "server $server_pid on port $port, log $run_dir/server.log"
}

wait_healthy() {
  local until=$((SECONDS + health_wait_s)) looks=0
  while ((SECONDS < until)); do
    http_get /health >/dev/null && return 0
    alive || return 1
    if ((looks++ < 20)); then sleep 0.1; else sleep "$poll_s"; fi
  done
  mark health_timeout
  say "no answer of /health within $health_wait_s s"
  return 2
}

for attempt in 1 2 3; do
  choose_port "$attempt" || { say 'no free port'; exit 1; }
  printf '%s\n' "$port" >"$run_dir/port"
  start_server
  wait_healthy
  health=$?
  ((health == 1)) && grep -qi 'address already in use' "$run_dir/server.log" || break
  say "port $port was taken meanwhile"
  wait "$server_pid" 2>/dev/null
  server_pid=''
  mv -f "$run_dir/server.log" "$run_dir/server.log.$attempt"
done
if [[ ! -e $run_dir/server.log ]]; then
  mv -f "$run_dir/server.log.$attempt" "$run_dir/server.log"
fi
if ((health != 0)); then
  say 'the server did not come up; its last lines:'
  tail -n 5 "$run_dir/server.log"
  if ((health == 1)) && [[ -n $server_pid ]]; then
    wait "$server_pid"
    code=$?
    # 126 and 127 tell that a program cannot be run or found, 255 that the container failed.
    if ((code == 126 || code == 127)) ||
      { ((code == 255)) && grep -q '^FATAL:' "$run_dir/server.log"; }; then
      outcome=not_started
      say "${engine[0]} was not found, or could not be run: its lines above say why"
    fi
  fi
  exit 1
fi
mark serve_start
outcome=served
say "ready: http://$(hostname):$port/v1 serves $model"

# --- the benchmark -----------------------------------------------------------------------------

scrape() {
  local n
  for ((n = 1; n < 9999; n++)); do
    sleep "$scrape_s"
    http_get /metrics >"$run_dir/metrics.part" &&
      mv -f "$run_dir/metrics.part" "$(printf '%s/metrics-%04d.prom' "$run_dir" "$n")"
  done
}

if ((${#bench_arguments[@]})); then
  http_get /metrics >"$run_dir/metrics-0000.prom" || rm -f "$run_dir/metrics-0000.prom"
  scrape &
  scrape_pid=$!
  mark bench_start
  ${inside[@]+"${inside[@]}"} "${engine[@]}" bench serve --backend vllm \
    --base-url "http://127.0.0.1:$port" --endpoint /v1/completions \
    --model "$model" --tokenizer "$checkpoint" \
    --save-result --result-dir "$run_dir" --result-filename bench.json \
    "${bench_arguments[@]}" >"$run_dir/bench.log" 2>&1 &
  bench_pid=$!
  wait "$bench_pid"
  bench_code=$?
  bench_pid=''
  mark bench_end
  kill "$scrape_pid" 2>/dev/null
  wait "$scrape_pid" 2>/dev/null
  scrape_pid=''
  rm -f "$run_dir/metrics.part"
  http_get /metrics >"$run_dir/metrics-9999.prom" || rm -f "$run_dir/metrics-9999.prom"
  if ((bench_code == 0)); then
    outcome=benchmarked
    say "benchmark done: $run_dir/bench.json"
  else
    outcome=bench_failed
    say "the benchmark failed with code $bench_code; its last lines:"
    tail -n 5 "$run_dir/bench.log"
  fi
  ((stop_after_bench)) && exit
  emit_rows
fi

# --- serve on ----------------------------------------------------------------------------------

wait "$server_pid"
say "the server ended with code $?"
server_pid=''
mark serve_end
outcome=died
exit 1

# Sourced by the scripts beside it: finds or fetches uv, then the locked environment.
# shellcheck shell=bash

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
venv=${UV_PROJECT_ENVIRONMENT:-$root/.venv}
export UV_PROJECT_ENVIRONMENT=$venv

say() { printf 'omnipilot: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# uv and Debian's pip both honour this file; it exists wherever ca-certificates is installed.
if [ -z "${SSL_CERT_FILE:-}" ] && [ -r /etc/ssl/certs/ca-certificates.crt ]; then
  export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
fi

# Debian ships python3 without pip and without ensurepip. Its pip wheel is taken out of the package
# into a private folder, so neither root nor a change to the system is needed.
debian_pip_wheel() {
  local work=$1
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/deb" || return 1
  local options=(-qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache"
    -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)")
  (cd "$work" && apt-get "${options[@]}" update && apt-get "${options[@]}" download python3-pip-whl) \
    >/dev/null 2>&1 || return 1
  dpkg-deb -x "$work"/python3-pip-whl*.deb "$work/deb" || return 1
  find "$work/deb" -name 'pip-*.whl' -print -quit
}

# Puts uv into .venv-uv. An environment of its own is never externally managed (PEP 668).
fetch_uv() {
  local home=$root/.venv-uv python wheel work
  python=$(command -v python3) || die "python3 is missing: install Python 3.11 or newer"
  say "uv is missing: getting it once into .venv-uv"
  rm -rf "$home"
  if "$python" -m venv "$home" >/dev/null 2>&1; then
    "$home/bin/python" -m pip install --quiet uv >&2 && return 0
  fi
  rm -rf "$home"
  "$python" -m venv --without-pip "$home" >&2 || die "python3 cannot make an environment: \
install the package python3-venv, or uv itself"
  if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip --python "$home/bin/python" install --quiet uv >&2 && return 0
  fi
  work=$(mktemp -d)
  wheel=$(debian_pip_wheel "$work") || wheel=""
  if [ -n "$wheel" ] && PYTHONPATH=$wheel "$home/bin/python" -m pip install --quiet uv >&2; then
    rm -rf "$work"
    return 0
  fi
  rm -rf "$work" "$home"
  die "could not get uv: install the package python3-venv (or uv itself) and run this again"
}

find_uv() {
  if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
    uv=uv
  else
    [ -x "$root/.venv-uv/bin/uv" ] || fetch_uv
    uv=$root/.venv-uv/bin/uv
  fi
}

# ensure_environment core|dev|gate: syncs when the lock changed or the clone moved, else costs
# nothing. core runs the program, dev adds the tools, gate adds what training needs.
ensure_environment() {
  local kind=$1 stamp=$venv/.omnipilot-$1 state flags=(--frozen --inexact --quiet --compile-bytecode)
  state="$root $(cksum <"$root/uv.lock") $(cksum <"$root/pyproject.toml")"
  [ -x "$venv/bin/python" ] && [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$state" ] && return 0
  find_uv
  case $kind in
    core) flags+=(--no-default-groups) ;;
    dev) flags+=(--no-group fit) ;;
  esac
  say "preparing the environment (once)"
  (cd "$root" && "$uv" sync "${flags[@]}") >&2 || die "the environment could not be prepared: \
see the lines above; the package index must be reachable the first time"
  # A third of the start is compiling where the user keeps Python from writing bytecode.
  "$venv/bin/python" -m compileall -q "$root/src" || true
  printf '%s' "$state" >"$stamp"
}

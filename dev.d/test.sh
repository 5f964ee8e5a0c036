#!/bin/sh
# Tests of ./dev on made-up machines: a folder of stand-in programs as the only PATH, and a made-up system beneath
# FLEXFEED_DEV_SYSROOT. Nothing real is built, installed or asked for, and nothing outside a temporary folder is touched.
# shellcheck disable=SC2016 # what the stand-ins expand, they expand when they run
set -eu
# What the caller requires is about this machine, not about those that are made up here.
unset FLEXFEED_REQUIRE_PEERS

source_root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# The clone under test has spaces in its path.
clone="$work/a clone of flexfeed"
mkdir -p "$clone"
cp -R "$source_root/dev" "$source_root/dev.d" "$clone/"
mkdir -p "$clone/web"
echo "{}" >"$clone/web/package-lock.json"
printf '[workspace.package]\nversion = "0.1.0"\nrust-version = "1.94"\n' >"$clone/Cargo.toml"
printf '[toolchain]\nchannel = "1.95.0"\n' >"$clone/rust-toolchain.toml"
mkdir -p "$clone/testbed/docker"

checks=0
failures=0
machines=0
all_build='git cc c++ make cmake clang libclang'
all_network='ip nft unshare nsenter setpriv feedparser'
all_database='initdb postgres'
all_web='node npm chromium'

# machine: begins a new, bare one: an ordinary user, a few basic programs, nothing to build with.
machine() {
	machines=$((machines + 1))
	machine=$work/$machines
	mkdir -p "$machine/bin" "$machine/home" "$machine/tmp" "$machine/root/proc/sys/kernel" "$machine/root/proc/sys/user"
	for program in sh cat cp dirname env find grep mkdir mktemp readlink rm rmdir sed uname; do
		ln -s "$(command -v "$program")" "$machine/bin/$program"
	done
	stand_in id 'echo 1000'
}

# stand_in PROGRAM SCRIPT: puts a program on the machine. It writes down how it was called, then does as SCRIPT says.
stand_in() {
	rm -f "$machine/bin/$1"
	cat >"$machine/bin/$1" <<END
#!/bin/sh
printf '%s\n' "$1 \$*" >>'$machine/log'
PATH=/usr/bin:/bin
$2
END
	chmod +x "$machine/bin/$1"
}

# install THING...: as if its package were installed.
install() {
	for thing in "$@"; do
		case $thing in
		libclang)
			mkdir -p "$machine/root/usr/lib/llvm-14/lib"
			: >"$machine/root/usr/lib/llvm-14/lib/libclang.so.1"
			;;
		feedparser) stand_in python3 '' ;;
		node) stand_in node 'echo v20.0.0' ;;
		*) stand_in "$thing" '' ;;
		esac
	done
}

# rust VERSION: a toolchain on the PATH. Its cargo makes the programs that ./dev starts.
rust() {
	stand_in rustc "echo 'rustc $1 (0123456789 2026-01-01)'"
	stand_in cargo '
mkdir -p "$CARGO_TARGET_DIR/debug" "$CARGO_TARGET_DIR/xtask/debug"
cd "$CARGO_TARGET_DIR"
printf "#!/bin/sh\necho the demo ran with \$DEMO_SECONDS\nexit 7\n" >debug/flexfeed-demo
printf "#!/bin/sh\necho simulated \"\$@\"\nexit 1\n" >debug/flexfeed-simulate
printf "#!/bin/sh\necho xtask ran \"\$@\"\nexit 3\n" >xtask/debug/xtask
chmod +x debug/flexfeed-* xtask/debug/xtask'
}

# apt: the machine gets an apt-get whose packages bring what Debian's bring.
apt() {
	stand_in apt-get "
case \" \$* \" in *' install '*) ;; *) exit 0 ;; esac
for package in \"\$@\"; do
	case \$package in
	gcc) names=cc ;;
	g++) names=c++ ;;
	git | make | cmake | clang | curl | shellcheck) names=\$package ;;
	iproute2) names=ip ;;
	nftables) names=nft ;;
	util-linux) names='unshare nsenter setpriv' ;;
	python3-feedparser) names=python3 ;;
	libclang-dev) names=''; mkdir -p '$machine/root/usr/lib/llvm-14/lib'; : >'$machine/root/usr/lib/llvm-14/lib/libclang.so' ;;
	ca-certificates) names=''; mkdir -p '$machine/root/etc/ssl/certs'; : >'$machine/root/etc/ssl/certs/ca-certificates.crt' ;;
	*) continue ;;
	esac
	for name in \$names; do cp '$machine/spare/'\$name '$machine/bin/'\$name; done
done"
	# What the packages contain lies ready beside the machine.
	mkdir -p "$machine/spare"
	install cc c++ git make cmake clang shellcheck ip nft unshare nsenter setpriv feedparser
	rust 1.99.0
	# The installer that curl fetches puts Rust where rustup puts it.
	stand_in curl "
while [ \$# -gt 0 ]; do
	if [ \"\$1\" = -o ]; then
		echo 'echo installer \$* >>\"$machine/log\"; mkdir -p \"\$HOME/.cargo/bin\"; cp \"$machine/spare/rustc\" \"$machine/spare/cargo\" \"\$HOME/.cargo/bin/\"' >\"\$2\"
	fi
	shift
done"
	for name in cc c++ git make cmake clang shellcheck ip nft unshare nsenter setpriv python3 rustc cargo curl; do
		mv "$machine/bin/$name" "$machine/spare/$name"
	done
}

# dev ARGUMENT...: runs ./dev there, from another folder and without a terminal; sets `code`, keeps what it prints.
dev() {
	doing="./dev $*"
	: >"$machine/log"
	code=0
	(cd / && on_machine sh "$clone/dev" "$@" </dev/null >"$machine/out" 2>&1) || code=$?
}

# dev_at_terminal ANSWER ARGUMENT...: the same at a terminal where ANSWER is typed.
dev_at_terminal() {
	answer=$1
	shift
	doing="./dev $* (at a terminal, answering '$answer')"
	: >"$machine/log"
	code=0
	printf '%s\n' "$answer" | on_machine "$(command -v script)" -qec "cd / && sh '$clone/dev' $*" /dev/null \
		>"$machine/out" 2>&1 || code=$?
}

on_machine() {
	env -i ${FLEXFEED_REQUIRE_PEERS:+"FLEXFEED_REQUIRE_PEERS=$FLEXFEED_REQUIRE_PEERS"} HOME="$machine/home" PATH="$machine/bin" TMPDIR="$machine/tmp" SHELL=/bin/sh DEMO_SECONDS=3 \
		CARGO_TARGET_DIR="$machine/target dir" FLEXFEED_DEV_SYSROOT="$machine/root" "$@"
}

# ends CODE: the last run ended with it.
ends() {
	checks=$((checks + 1))
	[ "$code" = "$1" ] || wrong "ended with $code, not $1"
}

# says TEXT...: the last run printed each.
says() {
	for text in "$@"; do
		checks=$((checks + 1))
		grep -qF -- "$text" "$machine/out" || wrong "did not say: $text"
	done
}

says_not() {
	for text in "$@"; do
		checks=$((checks + 1))
		! grep -qF -- "$text" "$machine/out" || wrong "said: $text"
	done
}

# called TEXT: a program was called like this; called_not: none was.
called() {
	checks=$((checks + 1))
	grep -qF -- "$1" "$machine/log" || wrong "did not call: $1"
}

called_not() {
	checks=$((checks + 1))
	! grep -q "^$1" "$machine/log" || wrong "called: $(grep "^$1" "$machine/log")"
}

wrong() {
	failures=$((failures + 1))
	printf 'dev.d/test.sh: machine %s: %s %s. It printed:\n' "$machines" "$doing" "$1"
	sed 's/^/    /' "$machine/out"
}

# As sudo does: runs the command, found on the caller's PATH.
obliging_sudo='PATH=${0%/*}; [ "$1" != -n ] || shift; "$@"'
rustup_line="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --default-toolchain 1.95.0"

# --- help and usage, on a machine with nothing
machine
dev help
ends 0
says './dev demo' './dev sabotage' 'DEMO_SECONDS=60' '--yes'
dev
ends 0
says './dev demo'
dev test --help
ends 0
says './dev demo'
dev pictures
ends 2
says "unknown command 'pictures'" 'there are demo, test, test-upgrade,' 'helm, test-kube and help'
dev test --fast
ends 2
says "unknown option '--fast'"
dev demo now
ends 2
says "'demo' takes no 'now'"
dev fuzz control 5 more
ends 2
says "'fuzz' takes no 'more'"
dev fuzz --quickly
ends 2
says "unknown option '--quickly'"

# --- an ordinary user without sudo: everything is named, and one line brings it
machine
apt
dev demo --yes
ends 2
says ' git' 'C compiler' 'C++ compiler' ' make' ' cmake' ' clang' ' libclang' ' ip' ' nft' ' unshare' ' nsenter' ' setpriv' \
	'reader of Atom files' 'Rust 1.94 or newer' ' curl' \
	"  su -c 'apt-get update && apt-get install -y --no-install-recommends git gcc libc6-dev g++ make cmake clang libclang-dev curl ca-certificates iproute2 nftables util-linux python3-feedparser' && $rustup_line"
called_not apt-get
called_not curl
dev bench
ends 2
says ' libclang' 'nftables' 'postgresql'
says_not 'feedparser'
dev lint
ends 2
says 'shellcheck'

# --- sudo, but nobody to ask
machine
apt
stand_in sudo "$obliging_sudo"
dev demo
ends 2
says 'sudo apt-get update && sudo apt-get install -y --no-install-recommends git gcc' "&& $rustup_line" './dev demo --yes'
says_not 'Run it now?'
called_not apt-get
called_not sudo
called_not curl

# --- the same with leave given in advance
dev demo --yes
ends 7
called 'sudo -n env DEBIAN_FRONTEND=noninteractive apt-get'
called 'installer -y --no-modify-path --default-toolchain 1.95.0 --profile minimal --component rustfmt --component clippy'
called 'cargo build --locked -p flexfeed-source -p flexfeed-receiver -p flexfeed-testbed --bin flexfeed-source --bin flexfeed-receiver --bin flexfeed-lore --bin flexfeed-demo'
says 'the demo ran with 3' 'Everything needed is there now.' 'first build' 'about 9 to 12 minutes on 2 cores'
dev demo
ends 7
called_not sudo
says_not 'Missing'

# --- sudo refuses
machine
apt
stand_in sudo 'echo "a password is required" >&2; exit 1'
dev demo --yes
ends 2
says 'sudo did not give the rights' "su -c 'apt-get update"
called_not apt-get

# --- asked at a terminal
if command -v script >/dev/null 2>&1; then
	machine
	apt
	stand_in sudo "$obliging_sudo"
	dev_at_terminal n demo
	ends 2
	says 'Run it now? [y/N]' 'sudo apt-get update'
	called_not apt-get
	called_not curl
	dev_at_terminal y demo
	ends 7
	called 'sudo env DEBIAN_FRONTEND=noninteractive apt-get'
	says 'the demo ran'
else
	printf 'dev.d/test.sh: skipped: the questions at a terminal (there is no "script" program)\n'
fi

# --- root
machine
stand_in id 'echo 0'
dev demo --yes
ends 2
says 'There is no apt-get here' 'libclang-dev' 'nftables' "$rustup_line"
machine
stand_in id 'echo 0'
apt
dev demo
ends 7
called 'apt-get -o Acquire::Retries=3 update'
called 'installer -y'
machine
stand_in id 'echo 0'
apt
stand_in apt-get 'echo "E: no such package" >&2; exit 100'
dev demo
ends 1
says 'E: no such package' 'apt-get could not install'

# --- Rust alone is missing, old, or hidden
machine
# shellcheck disable=SC2086 # a list
install $all_build $all_network curl
dev demo
ends 2
says "  $rustup_line" './dev demo --yes'
says_not 'apt-get'
rust 1.75.0
dev demo
ends 2
says 'Rust 1.75.0 is here' "  $rustup_line"
stand_in rustup 'exit 1'
dev demo
ends 2
says '  rustup toolchain install 1.95.0 --profile minimal'
stand_in rustup 'case $* in "run stable rustc --version") echo "rustc 1.94.0 (x)" ;; esac'
stand_in rustc '[ "${RUSTUP_TOOLCHAIN:-}" = stable ] && echo "rustc 1.94.0 (x)" || echo "rustc 1.75.0 (x)"'
dev demo
ends 7
rust 1.94.0
rm "$machine/bin/rustup"
dev demo
ends 7
rust 2.0.0-nightly
dev demo
ends 7

# --- tools that are there but do not work
rust 1.94.0
stand_in c++ 'echo "fatal error: cstdio: No such file or directory" >&2; exit 1'
dev demo
ends 2
says 'a C++ compiler' 'g++'
install c++
rm "$machine/root/usr/lib/llvm-14/lib/libclang.so.1"
mkdir -p "$machine/root/usr/lib/postgresql/15/bin"
: >"$machine/root/usr/lib/llvm-14/lib/libclang-cpp.so.14"
dev bench
ends 2
says 'libclang-dev' ' postgresql'
printf '#!/bin/sh\n' >"$machine/root/usr/lib/postgresql/15/bin/initdb"
chmod +x "$machine/root/usr/lib/postgresql/15/bin/initdb"
dev bench
ends 2
says_not 'postgresql'
install libclang
stand_in python3 '[ "$2" = "import sqlite3" ]'
dev demo
ends 2
says 'python3-feedparser'
# shellcheck disable=SC2086 # a list
install newsboat $all_web
dev demo
ends 7

# --- only the tests need what decodes flows
stand_in python3 '[ "$2" != "import cryptography" ]'
dev test
ends 2
says 'cryptography for Python' 'python3-cryptography'
says_not 'feedparser'
dev demo
ends 7
install feedparser

# --- virtual networks are refused
stand_in unshare '! echo "$*" | grep -q bridge'
dev test
ends 2
says 'sudo modprobe -a bridge veth nf_tables'
stand_in unshare 'exit 1'
dev test
ends 2
says 'virtual networks cannot be made here' '--privileged'
echo 0 >"$machine/root/proc/sys/user/max_user_namespaces"
dev test
ends 2
says 'sudo sysctl -w user.max_user_namespaces='
echo 0 >"$machine/root/proc/sys/kernel/unprivileged_userns_clone"
dev sabotage
ends 2
says 'sudo sysctl -w kernel.unprivileged_userns_clone=1'
echo 1 >"$machine/root/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
dev demo
ends 2
says 'sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0'
stand_in id 'echo 0'
dev demo
ends 2
says 'CAP_SYS_ADMIN' '--privileged'
called_not cargo
stand_in uname 'echo Darwin'
dev demo
ends 2
says 'need Linux'

# --- steps written in Rust are built apart and get their operands; their exit code is the command's
machine
# shellcheck disable=SC2086 # lists
install $all_build $all_network $all_database $all_web shellcheck
rust 1.94.0
for step in sabotage lint figures 'fuzz control 5' 'api 7' 'test-upgrade v1' 'test-tarball a.tar.gz' \
	"tarball $work"; do
	# shellcheck disable=SC2086 # a command with its operands
	dev $step
	ends 3
	says "xtask ran $step"
	called "cargo build --quiet --locked --package xtask --target-dir $machine/target dir/xtask"
done
dev test
ends 3
says 'xtask ran test python3 '"$machine/bin/chromium"
dev api some
ends 2
says 'no number'
dev lint fast
ends 2
says "'lint' takes no 'fast'"

# --- bench passes its prefix on
install node npm
stand_in npm 'case $1 in ci) mkdir -p node_modules ;; esac'
dev bench gen_vs
ends 0
called 'npm run --silent build'
called 'cargo run --release --locked -p flexfeed-testbed --bin flexfeed-bench -- gen_vs'

# --- simulate gets what stands behind it, and its exit code is the command's
machine
# shellcheck disable=SC2086 # a list
install $all_build
rust 1.94.0
dev simulate --seed 17 -v --yes
ends 1
called 'cargo build --locked -p flexfeed-simulation'
says 'simulated --seed 17 -v'
says_not '--yes'
dev simulate
ends 1
says 'simulated'
dev simulate --help
ends 0
says './dev simulate'

# --- web needs Node.js alone, gets what it builds with once, and then builds
machine
rm -rf "$clone/web/node_modules"
dev web
ends 2
says 'Node.js' 'npm' 'nodejs npm'
says_not 'libclang'
stand_in node 'echo v16.20.2'
stand_in npm 'case $1 in ci) mkdir -p node_modules ;; esac'
dev web
ends 2
says 'Node.js 18.18.0 or newer'
stand_in node 'echo v18.20.4'
dev web
ends 0
called 'npm ci'
called 'npm run --silent build'
dev web
ends 0
called_not 'npm ci'
called 'npm run --silent build'
stand_in npm 'case $1 in run) exit 1 ;; esac'
dev web
ends 1

# --- images need an engine that can build them; what is missing is said before anything is done
machine
dev images --quickly
ends 2
says "unknown option '--quickly'" '--prebuilt DIR'
dev images --prebuilt
ends 2
says '--prebuilt needs a folder'
dev images --prebuilt "$machine/nowhere"
ends 2
says "no flexfeed-source in $machine/nowhere"
dev images
ends 2
says 'there is no Docker here' 'docker.io'
stand_in docker 'case $1 in version) echo "Cannot connect to the Docker daemon" >&2; exit 1 ;; esac'
dev images
ends 2
says 'no Docker engine answers' 'Cannot connect'
stand_in docker 'case $* in "version --format {{.Server.Version}}") echo 28.0.0 ;; "version --format {{.Client.Version}}") echo 28.0.0 ;; buildx*) exit 1 ;; esac'
dev images
ends 2
says 'cannot build with BuildKit'
stand_in docker 'case $* in "image inspect"*) exit 1 ;; build*) exit 1 ;; *) echo 20.10.24 ;; esac'
stand_in git 'echo 0123456789abcdef'
dev images --local-base
ends 2
says 'apt-get install -y --no-install-recommends mmdebstrap'
stand_in mmdebstrap ''
dev images --local-base
ends 2
says 'has to be run as root'
dev images --tag mine
ends 1
says 'compiles everything inside Docker' 'the images could not be built'
called '--target source --tag flexfeed/source:mine --tag flexfeed/source:latest'
called '--build-arg REVISION=0123456789abcdef'

# --- without an engine, the tests of the images say so, and fail where everything has to be tested
machine
stand_in python3 'echo tested "$@"'
dev test-docker
ends 0
says '!!! SKIPPED' 'NOT tested'
FLEXFEED_REQUIRE_PEERS=1
export FLEXFEED_REQUIRE_PEERS
dev test-docker
ends 2
says 'there is no Docker here'
unset FLEXFEED_REQUIRE_PEERS
stand_in docker 'echo 20.10.24'
dev test-docker test_image
ends 0
says 'tested -m run test_image'
says_not 'Building Compose'
stand_in docker 'case $1 in compose) exit 1 ;; *) echo 20.10.24 ;; esac'
dev test-docker
ends 0
says_not 'Building Compose'
stand_in go 'case $1 in env) echo go1.26.8 ;; *) exit 1 ;; esac'
dev test-docker
ends 0
says 'Building Compose 2.40.3' '!!! It could not be built' 'tested -m run'

# --- programs with fault injection get into no image
machine
# shellcheck disable=SC2086 # a list
install $all_build
rust 1.94.0
for program in source receiver relay gateway console; do
	stand_in "flexfeed-$program" ''
done
dev images --prebuilt "$machine/bin"
ends 3
says "xtask ran refuse-faults $machine/bin"

# --- the chart needs Helm, or a Go that builds it, and Python
machine
dev helm
ends 2
says 'Helm 3.14.0 or newer' 'Python 3'
says_not 'libclang'
stand_in go 'echo go1.19.8'
stand_in python3 ''
dev helm
ends 2
says 'Go 1.24 or newer'
says_not 'Python 3'
stand_in helm 'echo v3.9.0'
dev helm
ends 2
says 'Helm 3.14.0 or newer'
stand_in go 'case $1 in env) echo go1.26.8 ;; install) exit 1 ;; esac'
dev helm
ends 1
called 'go install'
says 'Helm could not be built'
stand_in helm 'case $1 in version) echo v3.18.0 ;; lint) exit 1 ;; esac'
mkdir -p "$clone/helm/flexfeed/ci"
: >"$clone/helm/flexfeed/ci/one.yaml"
stand_in python3 'case $* in "-m venv "*) mkdir -p "$3/bin"; printf "#!/bin/sh\necho 1.37.0\n" >"$3/bin/python"; cp "$3/bin/python" "$3/bin/pip"; chmod +x "$3/bin/"* ;; esac'
dev helm
ends 1
called 'helm lint --strict'
says 'helm lint does not like'
dev test-kube --prefix x
ends 2
says 'kubectl is missing'
# --- nothing is left behind
doing='all of the above'
checks=$((checks + 1))
[ -z "$(find "$work"/*/tmp -mindepth 1)" ] || wrong 'left temporary files behind'

if [ "$failures" != 0 ]; then
	printf 'dev.d/test.sh: %s of %s checks failed\n' "$failures" "$checks"
	exit 1
fi
printf 'dev.d/test.sh: %s checks passed on %s made-up machines\n' "$checks" "$machines"

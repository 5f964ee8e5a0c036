# Part of ./dev: finds a Docker engine and a client that can build for it; makes a base image where
# none can be pulled. Shell, because building images needs Docker alone, not Rust.
# shellcheck shell=sh disable=SC2034,SC2154 # shared with ../dev, needs.sh, images.sh and kube.sh

# The Debian release of the base image; by default the one that this machine runs.
base_suite=${FLEXFEED_BASE_SUITE:-}

# Release of Compose that is built where Docker has no Compose 2.
compose_version=2.40.3

# engine_answers: whether there is a Docker engine that this user may use.
engine_answers() {
	have docker && docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# no_engine: prints why no engine can be used, and ends.
no_engine() {
	if ! have docker; then
		fail 2 'there is no Docker here: apt-get install -y --no-install-recommends docker.io, then start its service'
	fi
	fail 2 "no Docker engine answers: is its service started, and may this user use it? It says: $(docker version 2>&1 | sed -n '$p')"
}

# can_buildkit CLIENT: whether it builds with BuildKit: by the plugin buildx, or by itself until
# release 22.
can_buildkit() {
	"$1" buildx version >/dev/null 2>&1 && return 0
	client=$("$1" version --format '{{.Client.Version}}' 2>/dev/null) || return 1
	case ${client%%.*} in
	18 | 19 | 20 | 22) return 0 ;;
	esac
	return 1
}

# find_builder: sets `builder` to a client that can build with BuildKit.
find_builder() {
	engine_answers || no_engine
	for builder in docker "$sysroot/usr/bin/docker"; do
		have "$builder" && can_buildkit "$builder" && return 0
	done
	fail 2 'this Docker client cannot build with BuildKit: install its plugin (the package is docker-buildx, or docker-buildx-plugin)'
}

# local_base: makes a base image from the distribution's packages, once, and sets `base_image` to
# it: a Debian 12 where debootstrap does not know this machine's distribution. It contains the
# certificate authorities that were added here, because builds use the same network.
local_base() {
	suite=$base_suite
	# shellcheck disable=SC1091 # not on all systems
	[ -n "$suite" ] || suite=$(. /etc/os-release 2>/dev/null && printf %s "${VERSION_CODENAME:-}")
	base_image=flexfeed-base:${suite:=bookworm}
	! docker image inspect "$base_image" >/dev/null 2>&1 || return 0
	have mmdebstrap || fail 2 'a base image is made by mmdebstrap: apt-get install -y --no-install-recommends mmdebstrap'
	[ "$(id -u)" = 0 ] || fail 2 '--local-base has to be run as root: mmdebstrap makes files of many owners'
	step "Making the base image $base_image of $suite's packages (once; less than a minute)"
	scratch=$(mktemp -d)
	set -- --variant=minbase --include=ca-certificates --aptopt='Acquire::Retries "3"'
	for authority in /usr/local/share/ca-certificates/*.crt; do
		[ ! -e "$authority" ] || set -- "$@" "--customize-hook=copy-in '$authority' /usr/local/share/ca-certificates"
	done
	# shellcheck disable=SC2016 # $1 belongs to the hook
	set -- "$@" --customize-hook='chroot "$1" update-ca-certificates' \
		--customize-hook='rm -rf "$1"/usr/share/man/* "$1"/usr/share/info/* "$1"/usr/share/locale/* "$1"/var/cache/apt/*.bin'
	made=0
	mmdebstrap --quiet "$@" "$suite" "$scratch/base.tar" && docker import -c 'CMD ["bash"]' "$scratch/base.tar" "$base_image" >/dev/null || made=1
	rm -rf "$scratch"
	[ "$made" = 0 ] || fail 1 'the base image could not be made; what mmdebstrap says is above'
}

# find_compose: builds Compose 2 for the tests where Docker has no such plugin and there is a Go
# that can.
find_compose() {
	! docker compose version >/dev/null 2>&1 || return 0
	export FLEXFEED_COMPOSE="$target/tools/bin/docker-compose"
	[ "$("$FLEXFEED_COMPOSE" version --short 2>/dev/null)" != "$compose_version" ] || return 0
	has_go || return 0
	step "Building Compose $compose_version into $target/tools (once; some minutes)"
	scratch=$(mktemp -d)
	# A module of its own: go install refuses modules with replacements, which Compose has.
	(
		cd "$scratch"
		go mod init compose
		thrice go get "github.com/docker/compose/v2/cmd@v$compose_version"
		mkdir -p "$target/tools/bin"
		thrice env CGO_ENABLED=0 go build -mod=mod -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=$compose_version" \
			-o "$FLEXFEED_COMPOSE" github.com/docker/compose/v2/cmd
	) || say '!!! It could not be built; the reason is above.'
	rm -rf "$scratch"
}

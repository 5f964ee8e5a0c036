# Part of ./dev: builds the images of deploy/docker, and tests them on a Docker engine. Shell,
# because this needs Docker alone; only prebuilt programs are checked by xtask.
# shellcheck shell=sh disable=SC2034,SC2154 # shared with ../dev and engine.sh

# images_usage TEXT: prints what is wrong with the arguments, and the usage, and ends.
images_usage() {
	fail 2 "$1; ./dev images takes --prebuilt DIR (programs that are built already), --local-base (makes the base image here), --tag TAG"
}

# version: prints the version of the workspace.
version() {
	sed -n '/^\[workspace.package\]/,/^$/s/^version *= *"\(.*\)"/\1/p' "$root/Cargo.toml"
}

# images OPTION...: builds PREFIX/source, relay, receiver, console and gateway, each tagged with the
# version and `latest`.
images() {
	prebuilt=''
	with_local_base=''
	tag=$(version)
	while [ $# -gt 0 ]; do
		case $1 in
		--prebuilt)
			[ $# -gt 1 ] || images_usage '--prebuilt needs a folder'
			prebuilt=$2
			shift
			;;
		--tag)
			[ $# -gt 1 ] || images_usage '--tag needs a name'
			tag=$2
			shift
			;;
		--local-base) with_local_base=1 ;;
		*) images_usage "unknown option '$1'" ;;
		esac
		shift
	done
	[ -z "$prebuilt" ] || for program in $programs; do
		[ -x "$prebuilt/$program" ] || fail 2 "there is no $program in $prebuilt: build the programs first"
	done
	if [ -n "$prebuilt" ]; then
		needs rust
		last_step=''
		xtask refuse-faults "$prebuilt"
	fi
	find_builder
	# Uncommitted changes are named in the label.
	revision=$(git -C "$root" rev-parse HEAD 2>/dev/null) && { git -C "$root" diff --quiet HEAD 2>/dev/null || revision=$revision-changed; }
	set -- --file "$root/deploy/docker/Dockerfile" --build-arg "VERSION=$(version)" --build-arg "REVISION=$revision" \
		--build-arg "CREATED=$(git -C "$root" show -s --format=%cI HEAD 2>/dev/null)" --build-arg "SOURCE_URL=${FLEXFEED_SOURCE_URL:-}"
	# Some builders of buildx keep the image to themselves without this.
	! "$builder" buildx version >/dev/null 2>&1 || set -- "$@" --load
	if [ -n "$with_local_base" ]; then
		local_base
		set -- "$@" --build-arg "BASE_IMAGE=$base_image" --build-arg "RUST_IMAGE=$base_image" --build-arg "NODE_IMAGE=$base_image"
	fi
	[ -z "${FLEXFEED_BUILD_JOBS:-}" ] || set -- "$@" --build-arg "JOBS=$FLEXFEED_BUILD_JOBS"
	context=$root
	if [ -n "$prebuilt" ]; then
		context=$(mktemp -d)
		mkdir -p "$context/prebuilt" "$context/deploy/docker"
		cp "$root"/LICENSE-* "$context/"
		cp "$root"/deploy/docker/*.sh "$context/deploy/docker/"
		for program in $programs; do
			strip --strip-all -o "$context/prebuilt/$program" "$prebuilt/$program" || fail 1 "$prebuilt/$program is no program"
		done
		set -- "$@" --build-arg PROGRAMS=prebuilt
	else
		say 'The first build compiles everything inside Docker: about half an hour on 2 cores. Later ones keep the dependencies.'
	fi
	made=0
	for program in $programs; do
		name=${program#flexfeed-}
		image=${FLEXFEED_IMAGE_PREFIX:-flexfeed}/$name
		step "Building $image:$tag"
		# By name, because some clients default to the classic builder.
		DOCKER_BUILDKIT=1 "$builder" build "$@" --target "$name" --tag "$image:$tag" --tag "$image:latest" "$context" || {
			made=1
			break
		}
	done
	[ "$context" = "$root" ] || rm -rf "$context"
	[ "$made" = 0 ] || fail 1 'the images could not be built; the reason is above'
	for program in $programs; do
		image=${FLEXFEED_IMAGE_PREFIX:-flexfeed}/${program#flexfeed-}:$tag
		say "$image  $(docker save "$image" | gzip | wc -c | awk '{ printf "%.1f MB compressed", $1 / 1e6 }')"
	done
}

# test_docker TEST...: runs the tests of testbed/docker, all or those that are named, on the images
# of ./dev images.
test_docker() {
	have python3 || fail 2 'the tests of the images are written in Python: apt-get install -y --no-install-recommends python3'
	if ! engine_answers; then
		[ -n "${FLEXFEED_REQUIRE_PEERS:-}" ] && no_engine
		say '!!! SKIPPED: no Docker engine answers here, so that images, compose and what is tried with them was NOT tested.'
		say '!!! Install and start one (apt-get install docker.io), run ./dev images, then this again.'
		return 0
	fi
	find_compose
	step 'Testing images and compose on a Docker engine'
	(cd "$root/testbed/docker" && FLEXFEED_UNSTABLE="$target/unstable.txt" PYTHONDONTWRITEBYTECODE=1 python3 -m run "$@")
}

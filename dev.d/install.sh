# Part of ./dev: installs what needs.sh found missing, or prints how. Shell, because Rust may be
# what is missing.
# shellcheck shell=sh disable=SC2154 # shared with ../dev and needs.sh

# Rust is installed in the version of rust-toolchain.toml. Another one that is already here and new
# enough is used as it is.
toolchain_options='--profile minimal --component rustfmt --component clippy'
rustup_options="--no-modify-path --default-toolchain $rust_pinned $toolchain_options"

# needs KIND...: returns when everything is there; otherwise installs it, or prints what to do and
# ends with code 2.
needs() {
	look_for "$@"
	[ -n "$missing" ] || return 0
	say "Missing on this machine:$missing"
	choose_rights
	may_install || give_up
	[ -z "$packages" ] || install_packages
	install_rust
	look_for "$@"
	[ -z "$missing" ] || fail 1 "installed, but still missing:$missing"
	say 'Everything needed is there now.'
}

# choose_rights: sets `rights`, by which system packages can be installed: root, sudo or none.
choose_rights() {
	rights=none
	if [ "$(id -u)" = 0 ]; then
		rights=root
	elif have sudo; then
		rights=sudo
	fi
}

# may_install: whether installing is possible and agreed to. Root is not asked.
may_install() {
	if [ -n "$packages" ]; then
		have apt-get || return 1
		[ "$rights" != none ] || return 1
	fi
	[ "$rights" != root ] && [ -z "$yes" ] || return 0
	[ -t 0 ] || return 1
	say ''
	say "It takes this: $(one_line)"
	[ -z "$packages" ] || say 'Your password may be asked for (by sudo).'
	printf 'Run it now? [y/N] ' >&2
	read -r answer || answer=''
	case $answer in
	[yY] | [yY][eE][sS]) ;;
	*) return 1 ;;
	esac
}

# one_line: prints the one line with which an ordinary user installs all that is missing.
one_line() {
	line=''
	if [ -n "$packages" ]; then
		install="apt-get install -y --no-install-recommends$packages"
		case $rights in
		sudo) line="sudo apt-get update && sudo $install" ;;
		none) line="su -c 'apt-get update && $install'" ;;
		esac
	fi
	rust_line=$(rust_line)
	printf '%s\n' "$line${line:+${rust_line:+ && }}$rust_line"
}

# rust_line: prints the command that installs Rust; nothing if Rust is there.
rust_line() {
	if [ "$rust" = ok ] && [ -z "$components" ]; then
		:
	elif ! have rustup; then
		printf '%s\n' "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y $rustup_options"
	elif [ "$rust" = ok ]; then
		printf '%s\n' "rustup component add${RUSTUP_TOOLCHAIN:+ --toolchain $RUSTUP_TOOLCHAIN} rustfmt clippy"
	else
		printf '%s\n' "rustup toolchain install $rust_pinned $toolchain_options"
	fi
}

# give_up: prints the one line to run, and ends.
give_up() {
	say ''
	if [ -n "$packages" ] && ! have apt-get; then
		say "There is no apt-get here. Install these with this system's package manager (the names are Debian's):$packages"
		[ -z "$(rust_line)" ] || say "Then Rust, with this line: $(rust_line)"
	elif [ -z "$(one_line)" ]; then
		say "Nothing here can get it by itself; then ./dev $command again."
	else
		say "Run this one line, then ./dev $command again:"
		say "  $(one_line)"
		if [ -z "$packages" ] || [ "$rights" != none ]; then
			say "or ./dev $command --yes, which does that by itself."
		fi
	fi
	exit 2
}

# as_root COMMAND...: runs it with the rights chosen.
as_root() {
	case $rights in
	root) "$@" ;;
	# Without a terminal sudo cannot ask for a password.
	sudo) if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi ;;
	esac
}

install_packages() {
	if [ "$rights" = sudo ] && ! as_root true; then
		say 'dev: sudo did not give the rights to install packages.'
		rights=none
		give_up
	fi
	step "Installing with apt:$packages"
	thrice as_root apt-get -o Acquire::Retries=3 update ||
		say 'dev: the package lists could not be renewed; trying with those that are here.'
	# Unquoted: one argument per name.
	# shellcheck disable=SC2086
	# The machine may be installing something by itself.
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $packages ||
		fail 1 'apt-get could not install the packages; what it says above has the reason'
}

install_rust() {
	# Rust may have come with the packages.
	[ "$rust" = ok ] || find_rust
	[ "$rust" != ok ] || [ -n "$components" ] || return 0
	if ! have rustup; then
		install_rustup
	elif [ "$rust" = ok ]; then
		step 'Adding rustfmt and clippy'
		rustup component add rustfmt clippy || fail 1 'rustup could not add rustfmt and clippy; the reason is above'
	else
		step "Installing Rust $rust_pinned alongside the present one (rustup)"
		# Unquoted: several arguments.
		# shellcheck disable=SC2086
		rustup toolchain install "$rust_pinned" $toolchain_options ||
			fail 1 "rustup could not install Rust $rust_pinned; the reason is above"
	fi
}

install_rustup() {
	step "Installing Rust with rustup, into $cargo_home (your shell's start-up files stay as they are)"
	scratch=$(mktemp -d)
	# The second address is the server of all other downloads of the first one's script.
	for address in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
		curl --proto '=https' --tlsv1.2 -sSf --retry 3 -o "$scratch/rustup.sh" "$address" && break
	done
	# A distribution's older Rust may stay: ./dev prefers rustup's, for itself only.
	# Unquoted: several arguments.
	# shellcheck disable=SC2086
	if [ ! -s "$scratch/rustup.sh" ] ||
		! RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$scratch/rustup.sh" -y $rustup_options; then
		rm -rf "$scratch"
		fail 1 'Rust could not be installed: is the network there? https://rustup.rs tells other ways'
	fi
	rm -rf "$scratch"
	say "To use cargo yourself in this terminal: . \"$cargo_home/env\""
}

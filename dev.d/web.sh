# Part of ./dev: builds the console's dashboard into web/dist, from where it gets into the program.
# Shell, because this needs Node.js alone, not Rust.
# shellcheck shell=sh disable=SC2154 # root: from ../dev

# The oldest Node.js that builds it: Debian 12's.
node_needed=18.18.0

# has_browser: sets `browser` to a Chromium, for the tests of the dashboard.
has_browser() {
	for browser in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
		[ -n "$browser" ] && have "$browser" && return 0
	done
	browser=''
	return 1
}

look_for_web() {
	node_version=$(node --version 2>/dev/null) || node_version=''
	at_least "${node_version#v}" "$node_needed" || lack "Node.js $node_needed or newer (builds the dashboard)" nodejs
	have npm || lack 'npm (gets what the dashboard is built with)' npm
}

look_for_browser() {
	has_browser || lack 'Chromium (the tests look at the dashboard in it)' chromium
}

# web_packages: installs the dashboard's packages in the versions of its lock file.
web_packages() {
	installed=$root/web/node_modules/.flexfeed-lock.json
	[ "$(cat "$root/web/package-lock.json")" != "$(cat "$installed" 2>/dev/null)" ] || return 0
	step 'Getting what the dashboard is built with'
	(cd "$root/web" && thrice npm ci --no-audit --no-fund)
	cp "$root/web/package-lock.json" "$installed"
}

# build_web: builds web/dist.
build_web() {
	web_packages
	step 'Building the dashboard'
	(cd "$root/web" && npm run --silent build)
}

# Part of ./dev: tests the chart in helm/flexfeed, without a cluster (./dev helm) and on one
# (./dev test-kube). Shell, because this needs Helm and Python, not Rust.
# shellcheck shell=sh disable=SC2154 # shared with ../dev and needs.sh

# The releases that are built or fetched where there is none, and the oldest that will do.
helm_version=3.22.0
helm_needed=3.14.0
go_needed=1.24
# Python package with the schemas of Kubernetes' versions.
validate_version=1.37.0
# Definitions of the optional objects, in Go modules: module@version/folder.
definitions='sigs.k8s.io/gateway-api@v1.3.0/config/crd/standard
github.com/prometheus-operator/prometheus-operator@v0.83.0/example/prometheus-operator-crd'

# has_helm: sets HELM to a Helm 3 that is new enough.
has_helm() {
	for HELM in "$target/tools/bin/helm" helm; do
		have "$HELM" || continue
		helm_here=$("$HELM" version --template '{{.Version}}' 2>/dev/null) || continue
		at_least "${helm_here#v}" "$helm_needed" || continue
		export HELM
		return 0
	done
	HELM=''
	return 1
}

# has_go: whether there is a Go that builds Helm.
has_go() {
	have go || return 1
	go_here=$(go env GOVERSION 2>/dev/null) || return 1
	at_least "${go_here#go}" "$go_needed"
}

look_for_chart() {
	has_helm || has_go || lack "Helm $helm_needed or newer, or Go $go_needed or newer, which builds it (https://helm.sh, https://go.dev)"
	have python3 || lack 'Python 3' python3 python3-venv
	[ -x "$target/tools/python/bin/python" ] || python3 -c 'import venv, ensurepip' >/dev/null 2>&1 ||
		lack 'virtual environments of Python' python3-venv
}

# find_helm: builds Helm into the target folder if need be.
find_helm() {
	! has_helm || return 0
	step "Building Helm $helm_version into $target/tools (once; some minutes)"
	(cd / && thrice env CGO_ENABLED=0 GOBIN="$target/tools/bin" go install -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=v$helm_version" \
		"helm.sh/helm/v3/cmd/helm@v$helm_version") || fail 1 'Helm could not be built; the reason is above'
	has_helm || fail 1 "$target/tools/bin/helm was built and does not work"
}

# find_validator: sets `python` to a Python with the packages that the chart's tests need.
find_validator() {
	python=$target/tools/python/bin/python
	[ "$("$python" -c 'import importlib.metadata as m; print(m.version("kubernetes-validate"))' 2>/dev/null)" != "$validate_version" ] || return 0
	step "Getting the schemas of Kubernetes, into $target/tools/python"
	if ! python3 -m venv "$target/tools/python" ||
		! thrice "$target/tools/python/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$validate_version" pyyaml jsonschema; then
		fail 1 'Python could not get kubernetes-validate; the reason is above'
	fi
}

# find_definitions: sets FLEXFEED_CRDS to the folders with the definitions of optional objects, as
# far as they can be fetched.
find_definitions() {
	FLEXFEED_CRDS=''
	if has_go; then
		for definition in $definitions; do
			folder=${definition#*@}
			folder=${folder#*/}
			module=${definition%"/$folder"}
			place=$(cd / && go mod download -json "$module" 2>/dev/null | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
			[ -z "$place" ] || FLEXFEED_CRDS=$FLEXFEED_CRDS${FLEXFEED_CRDS:+:}$place/$folder
		done
	fi
	export FLEXFEED_CRDS
}

# chart: runs all tests of the chart that need no cluster.
chart() {
	needs chart
	find_helm
	find_validator
	find_definitions
	step "Linting the chart with $("$HELM" version --short)"
	for values in "$root"/helm/flexfeed/ci/*.yaml; do
		"$HELM" lint --strict --quiet --kube-version 1.33.0 "$root/helm/flexfeed" --values "$values" || fail 1 "helm lint does not like $values"
	done
	step 'Testing what the chart makes of values'
	(cd "$root/testbed/helm" && "$python" -m unittest discover --quiet --pattern "*_test.py")
	step 'Validating all objects of all scenarios'
	"$python" "$root/testbed/helm/schemas.py"
	"$python" "$root/testbed/helm/values_table.py"
}

# test_kube ARGUMENT...: tests the chart on a real cluster.
test_kube() {
	needs chart
	have kubectl || fail 2 'kubectl is missing: see https://kubernetes.io/docs/tasks/tools/'
	find_helm
	find_validator
	# exec: Ctrl-C and the exit code are its own.
	exec "$python" "$root/testbed/helm/cluster.py" "$@"
}

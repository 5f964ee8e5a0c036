# Part of ./dev: keeps fault injection, by which tests take protections off, out of the programs that others get.
# shellcheck shell=sh disable=SC2154 # root, programs, fail: from ../dev

# fault_names: the variable that injects faults, and the name of each, one a line.
fault_names() {
	sed -n 's/^pub const VARIABLE: &str = "\(.*\)";$/\1/p; s/^    (Fault::[A-Za-z]*, "\(.*\)"),$/\1/p' "$root/crates/service/src/faults.rs"
}

# has_faults PROGRAM: whether faults can be injected into it. Only a program that was built with the feature `fault-injection`
# holds the names of the variable and of the faults.
has_faults() {
	case $(fault_names) in
	FLEXFEED_FAULTS*fence-off*) ;;
	*) fail 1 'crates/service/src/faults.rs has no names of faults where they are looked for' ;;
	esac
	fault_names | grep -qFf - "$1"
}

# no_faults DIR: ends if faults can be injected into one of the programs in it.
no_faults() {
	for program in $programs; do
		! has_faults "$1/$program" || fail 1 "$1/$program injects faults: programs with the feature 'fault-injection' are for tests only"
	done
}

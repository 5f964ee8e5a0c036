//! Steps that are written in Rust.

use std::fs;

use crate::machine::Machine;

/// Returns a script that prints what `cargo test` prints where tests fail.
fn failing(targets: usize, failed: usize, names: &[&str]) -> String {
    let names: String = names.iter().map(|name| format!("    {name}\\n")).collect();
    format!(
        "printf 'failures:\\n\\n---- a::b stdout ----\\n    nonsense\\n\\n\\nfailures:\\n{names}\\n\
         test result: FAILED. 5 passed; {failed} failed; 0 ignored\\n\\n\
         error: {targets} target failed:\\n'; exit 101"
    )
}

/// Puts a Cargo on the machine whose two attempts at the tests do as the scripts say.
fn cargo_tests(machine: &Machine, first: &str, second: &str) {
    machine.stand_in(
        "cargo",
        &format!(
            "case $* in\nbuild*) echo it is built ;;\n*--exact*) {second} ;;\n\
             *'-- scenarios::') echo '     Running them'; echo the scenarios passed ;;\n\
             test*) {first} ;;\nesac"
        ),
    );
}

/// Returns a machine that has everything for `./dev test`.
fn complete_machine() -> Machine {
    let machine = Machine::for_steps();
    fs::create_dir_all(machine.clone("testbed/packaging")).unwrap();
    fs::create_dir_all(machine.clone("web")).unwrap();
    machine.stand_in_at(&machine.target("tools/bin/amt"), "");
    machine.stand_in_at(&machine.target("tools/schemathesis/bin/schemathesis"), "");
    let installed = machine.target("tools/schemathesis/installed.txt");
    fs::write(installed, "schemathesis==1\n").unwrap();
    machine.stand_in("python3", "");
    machine.stand_in("npm", "");
    machine
}

const TEST: [&str; 3] = ["test", "python3", "chromium"];

#[test]
fn unknown_steps_are_refused() {
    let machine = Machine::for_steps();
    machine.run(&["pictures"]).ends(2).says(&["is no step"]);
    machine.run(&["lint", "fast"]).ends(2).says(&["is no step"]);
    machine.run(&[]).ends(2);
}

#[test]
fn all_tests_run_after_everything_is_built() {
    let machine = complete_machine();
    cargo_tests(&machine, "echo all is well", "exit 1");
    let test = machine.run(&TEST);
    test.ends(0)
        .says(&["./dev web", "it is built", "fuzzed", "all is well"])
        .says_not(&["once more", "UNSTABLE"])
        .called("cargo build --locked --workspace --bins --tests --examples")
        .called("npm run --silent e2e")
        .says(&["the scenarios passed"])
        .called("cargo test --locked --workspace --no-fail-fast --test it -- scenarios::")
        .called("cargo test --locked --workspace --no-fail-fast -- --skip scenarios::");
}

#[test]
fn failed_tests_get_a_second_attempt() {
    let mut machine = complete_machine();
    let again = "echo 'test result: ok. 1 passed; 0 failed'; \
                 echo 'test result: ok. 1 passed; 0 failed'";
    cargo_tests(&machine, &failing(1, 2, &["a::b", "c::d"]), again);
    let test = machine.run(&TEST);
    let retried = "cargo test --locked --workspace --lib --bins --tests -- --exact \
                   --test-threads=1 a::b c::d";
    test.ends(0)
        .says(&[
            "once more what failed: a::b c::d",
            "!!! UNSTABLE",
            "!!!   a::b",
            "!!!   c::d",
        ])
        .called(retried);
    let list = machine.target("unstable.txt");
    assert_eq!(fs::read_to_string(&list).unwrap(), "a::b\nc::d\n");

    machine.set("FLEXFEED_STRICT", "1");
    machine.run(&TEST).ends(101).says_not(&["once more"]);
    assert!(!list.exists(), "an old list was kept");
}

#[test]
fn tests_that_fail_twice_have_failed() {
    let machine = complete_machine();
    let first = failing(1, 1, &["a::b"]);
    cargo_tests(&machine, &first, "echo test a::b ... FAILED; exit 101");
    let test = machine.run(&TEST);
    test.ends(1)
        .says(&["test a::b ... FAILED", "failed twice"])
        .says_not(&["UNSTABLE"]);
    assert!(!machine.target("unstable.txt").exists());
    // A test that is not found again has not passed.
    cargo_tests(&machine, &first, "echo test result: ok. 0 passed");
    machine.run(&TEST).ends(1).says(&["0 were found again"]);
}

#[test]
fn too_many_or_unnamed_failures_are_final() {
    let machine = complete_machine();
    for first in [
        failing(1, 6, &["a", "b", "c", "d", "e", "f"]),
        failing(1, 2, &["a::b"]),
        failing(2, 1, &["a::b"]),
        "echo error: could not compile; exit 101".to_owned(),
    ] {
        cargo_tests(
            &machine,
            &first,
            "echo 'test result: ok. 9 passed; 0 failed'",
        );
        machine.run(&TEST).ends(101).says_not(&["once more"]);
    }
}

#[test]
fn scenarios_that_fail_get_a_second_attempt_too() {
    let machine = complete_machine();
    let scenario = failing(1, 1, &["scenarios::a"]);
    let other = failing(1, 1, &["b"]);
    let script = |second: &str| {
        format!(
            "case $* in\nbuild*) ;;\n*--exact*) {second} ;;\n\
             *'--skip scenarios::') {other} ;;\ntest*) {scenario} ;;\nesac"
        )
    };
    machine.stand_in(
        "cargo",
        &script("echo 'test result: ok. 2 passed; 0 failed'"),
    );
    let test = machine.run(&TEST);
    test.ends(0)
        .says(&[
            "once more what failed: b scenarios::a",
            "!!!   scenarios::a",
        ])
        .called("--exact --test-threads=1 b scenarios::a");
    machine.stand_in(
        "cargo",
        &script("echo 'test result: ok. 1 passed; 0 failed'"),
    );
    machine.run(&TEST).ends(1).says(&["1 were found again"]);
}

#[test]
fn scenarios_that_do_not_start_fail() {
    let machine = complete_machine();
    machine.stand_in(
        "cargo",
        "case $* in\n*'-- scenarios::') echo no lock; exit 101 ;;\nesac",
    );
    machine.run(&TEST).ends(101).says(&["no lock"]);
}

#[test]
fn programs_that_fail_their_tests_fail() {
    let machine = complete_machine();
    cargo_tests(&machine, "echo all is well", "exit 1");
    machine.script("services/console/fuzz-api.sh", "echo a 500; exit 4");
    machine.run(&TEST).ends(4).says(&["all is well", "a 500"]);
}

#[test]
fn a_failed_build_is_shown_and_is_the_end() {
    let machine = complete_machine();
    machine.stand_in("cargo", "echo 'error: no such crate'; exit 101");
    let test = machine.run(&TEST);
    test.ends(101)
        .says(&["error: no such crate"])
        .called_not("cargo test");
}

#[test]
fn a_failed_step_ends_the_build() {
    let machine = complete_machine();
    let pid = machine.target("pid");
    let script = format!("echo $$ >'{}'; exec sleep 60", pid.display());
    machine.stand_in("cargo", &script);
    let wait = format!(
        "[ \"$3\" != e2e ] || {{ until [ -s '{}' ]; do sleep 0.05; done; exit 3; }}",
        pid.display()
    );
    machine.stand_in("npm", &wait);
    machine.run(&TEST).ends(3);
    let pid = fs::read_to_string(pid).unwrap();
    let process = format!("/proc/{}", pid.trim());
    assert!(!std::path::Path::new(&process).exists(), "still building");
}

#[test]
fn without_an_earlier_version_the_upgrade_is_skipped_or_fails() {
    let mut machine = Machine::for_steps();
    machine.stand_in("git", "exit 128");
    machine.stand_in("cargo", "");
    let upgrade = machine.run(&["test-upgrade"]);
    upgrade
        .ends(0)
        .says(&["!!! SKIPPED: there is no earlier version"])
        .called_not("cargo");
    let named = machine.run(&["test-upgrade", "v9"]);
    named.ends(2).says(&["there is no commit 'v9' here"]);
    let wrong = machine.run(&["test-upgrade", "--quickly"]);
    wrong.ends(2).says(&["not '--quickly'"]);
    machine.set("FLEXFEED_REQUIRE_PEERS", "1");
    let upgrade = machine.run(&["test-upgrade"]);
    upgrade
        .ends(2)
        .says(&["clone with history"])
        .says_not(&["SKIPPED"]);
}

#[test]
fn the_earlier_version_is_built_apart() {
    let machine = Machine::for_steps();
    machine.file("rust-toolchain.toml", "");
    let commit = "0123456789abcdef";
    machine.stand_in(
        "git",
        &format!(
            "case $1 in\nrev-list | rev-parse) echo {commit} ;;\ndiff) exit 1 ;;\n\
             archive) tar -c Cargo.toml ;;\nesac"
        ),
    );
    let program = "printf '#!/bin/sh\\necho flexfeed 0.1.0-previous\\n'";
    machine.stand_in(
        "cargo",
        &format!(
            "echo \"built in $CARGO_BUILD_BUILD_DIR\"; d=$CARGO_TARGET_DIR/debug\n\
             mkdir -p \"$d\"; for part in source receiver; do\n\
             {program} >\"$d/flexfeed-$part\"; chmod +x \"$d/flexfeed-$part\"; done"
        ),
    );
    let build = machine.run(&["test-upgrade", "--build"]);
    let shared = format!("built in {}", machine.target("").display());
    build
        .ends(0)
        .says(&[shared.trim_end_matches('/')])
        .called("cargo build --workspace --bin flexfeed-source --bin flexfeed-receiver");
    let manifest = machine.target("previous/source/Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap();
    assert!(manifest.contains("version = \"0.1.0-previous\""));
    assert!(machine.target("previous/flexfeed-source").exists());
    // The program is not built again.
    let again = machine.run(&["test-upgrade", "--build"]);
    again.ends(0).called_not("cargo");
}

/// Puts a Cargo on the machine that makes programs, with fault injection where it is asked for.
fn cargo_programs(machine: &Machine, plain: &str) {
    let debug = machine.target("debug");
    let script = format!(
        "mkdir -p '{0}' && cd '{0}'\n\
         printf '#!/bin/sh\\necho sabotage ran on $FLEXFEED_BIN_DIR\\n' >flexfeed-sabotage\n\
         chmod +x flexfeed-sabotage\n\
         for part in source receiver relay gateway console swarm; do\n\
         case $* in *features*) echo FLEXFEED_FAULTS ;; *) echo {plain} ;; \
         esac >flexfeed-$part\ndone",
        debug.display()
    );
    machine.stand_in("cargo", &script);
    machine.stand_in_at(&machine.target("tools/bin/amt"), "");
}

#[test]
fn sabotage_keeps_its_programs_apart() {
    let machine = Machine::for_steps();
    cargo_programs(&machine, "plain");
    let run = format!("sabotage ran on {}", machine.target("sabotage").display());
    machine.run(&["sabotage"]).ends(0).says(&[&run]);
    cargo_programs(&machine, "FLEXFEED_FAULTS");
    machine
        .run(&["sabotage"])
        .ends(1)
        .says(&["debug/flexfeed-source injects faults"]);
}

#[test]
fn programs_with_fault_injection_are_not_packed() {
    let machine = Machine::for_steps();
    let folder = machine.programs("debug", "");
    let relay = folder.join("flexfeed-relay");
    machine.stand_in_at(&relay, "nat-by-address");
    let folder = folder.to_str().unwrap();
    for step in ["tarball", "refuse-faults"] {
        let refused = machine.run(&[step, folder]);
        refused.ends(1).says(&["flexfeed-relay injects faults"]);
    }
    machine.stand_in_at(&relay, "");
    machine.run(&["refuse-faults", folder]).ends(0);
    // These are no programs that could be packed.
    machine.stand_in("readelf", "");
    machine.stand_in("strip", "exit 1");
    machine
        .run(&["tarball", folder])
        .ends(1)
        .says(&["flexfeed-source is no program"])
        .says_not(&["injects faults"]);
}

#[test]
fn a_tarball_has_everything_in_it() {
    let machine = Machine::for_steps();
    let folder = machine.programs("debug", "");
    machine.stand_in("readelf", "");
    machine.stand_in("strip", "cp \"$4\" \"$3\"");
    for file in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "docs/protocol.md",
        "testbed/README.md",
        "helm/flexfeed/Chart.yaml",
        "deploy/prometheus/rules.yml",
        "deploy/grafana/flexfeed.json",
        "deploy/systemd/flexfeed-source.service",
        "deploy/systemd/flexfeed.sysusers.conf",
        "deploy/systemd/flexfeed.tmpfiles.conf",
        "deploy/systemd/config/source.toml",
        "deploy/tarball/README.md",
    ] {
        machine.file(file, file);
    }
    machine
        .run(&["tarball", folder.to_str().unwrap()])
        .ends(0)
        .says(&["Packing flexfeed-0.1.0-", "-linux-static"]);
    let packed = fs::read(machine.target("tarball/newest.tar.gz")).unwrap();
    let list = std::process::Command::new("tar")
        .arg("-tzf")
        .arg(machine.target("tarball/newest.tar.gz"))
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    for path in [
        "/bin/flexfeed-gateway\n",
        "/lib/systemd/system/flexfeed-source.service\n",
        "/lib/sysusers.d/flexfeed.conf\n",
        "/etc/flexfeed/source.toml\n",
        "/share/doc/flexfeed/docs/protocol.md\n",
        "/share/doc/flexfeed/helm/flexfeed/Chart.yaml\n",
        "/share/doc/flexfeed/deploy/systemd/flexfeed-source.service\n",
        "/share/doc/flexfeed/CONTRIBUTING.md\n",
        "/share/doc/flexfeed/SECURITY.md\n",
        "/README.md\n",
        "/SHA256SUMS\n",
    ] {
        assert!(list.contains(path), "no {path} in:\n{list}");
    }
    // The same content makes the same file.
    machine.run(&["tarball", folder.to_str().unwrap()]).ends(0);
    let again = fs::read(machine.target("tarball/newest.tar.gz")).unwrap();
    assert!(packed == again, "two runs made different files");
}

#[test]
fn a_tarball_needs_programs_and_a_static_linker() {
    let machine = Machine::for_steps();
    let nowhere = machine.target("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    let refused = machine.run(&["tarball", nowhere]);
    refused
        .ends(2)
        .says(&[&format!("no flexfeed-source in {nowhere}")]);
    let refused = machine.run(&["test-tarball", "none.tar.gz"]);
    refused.ends(2).says(&["there is no none.tar.gz"]);
    machine.stand_in("c++", "exit 1");
    let refused = machine.run(&["tarball"]);
    refused
        .ends(2)
        .says(&["cannot link C++ statically", "libstdc++-*-dev"]);
}

#[test]
fn a_fuzz_target_runs_under_a_nightly_compiler_or_one_that_acts_as_one() {
    let machine = Machine::for_steps();
    let echo = "echo \"bootstrap=${RUSTC_BOOTSTRAP:-} toolchain=${RUSTUP_TOOLCHAIN:-} $*\"";
    machine.stand_in("cargo", echo);
    machine.stand_in("rustc", "echo host: x");
    let fuzz = machine.run(&["fuzz", "control", "5"]);
    fuzz.ends(0)
        .says(&["Fuzzing control for 5 s", "-max_total_time=5"])
        .says(&["bootstrap=1 toolchain= fuzz run"])
        .says_not(&["Fuzzing feed"]);
    assert!(!machine.clone("fuzz/found").exists());
    machine.stand_in("rustup", "");
    let fuzz = machine.run(&["fuzz", "7"]);
    fuzz.ends(0)
        .says(&["Fuzzing control for 7 s", "Fuzzing feed for 7 s"])
        .says(&[
            "bootstrap= toolchain=nightly fuzz run",
            "-dict=dictionaries/feed.dict",
        ]);
}

#[test]
fn a_fuzz_target_that_panics_fails() {
    let machine = Machine::for_steps();
    machine.stand_in("rustc", "echo host: x");
    machine.stand_in("cargo", "case $* in 'fuzz run'*) exit 77 ;; esac");
    let fuzz = machine.run(&["fuzz", "feed"]);
    fuzz.ends(1)
        .says(&["Fuzzing feed for 60 s", "fuzz/found/feed"]);
    let none = machine.run(&["fuzz", "nothing"]);
    none.ends(2)
        .says(&["no fuzz target 'nothing'", "there are: control feed"]);
    machine.stand_in("sleep", "");
    let broken = "case $* in 'fuzz --version') exit 1 ;; install*) exit 101 ;; esac";
    machine.stand_in("cargo", broken);
    let fuzz = machine.run(&["fuzz", "feed"]);
    fuzz.ends(101)
        .called("cargo install --locked --debug --force");
}

#[test]
fn the_api_is_fuzzed_or_the_omission_is_loud() {
    let mut machine = Machine::for_steps();
    machine.stand_in("sleep", "");
    let skipped = machine.run(&["api"]);
    skipped.ends(0).says(&["!!! SKIPPED", "python3-venv"]);
    machine.stand_in("curl", "");
    machine.stand_in("python3", "[ \"$2\" != venv ] || exit 1");
    let skipped = machine.run(&["api"]);
    skipped
        .ends(0)
        .called("python3 -m venv")
        .says(&["!!! SKIPPED"]);
    let venv = "mkdir -p \"$3/bin\"; printf '#!/bin/sh\\necho pip $*\\n' >\"$3/bin/pip\"; \
                chmod +x \"$3/bin/pip\"";
    machine.stand_in("python3", venv);
    machine
        .run(&["api", "7"])
        .ends(0)
        .says(&[
            "pip install",
            "dev.d/schemathesis.txt",
            "bin/schemathesis 7 with 1",
        ])
        .says_not(&["SKIPPED"]);
    let again = machine.run(&["api"]);
    again.ends(0).says(&["fuzzed"]).called_not("python3");
    machine.script("services/console/fuzz-api.sh", "exit 1");
    machine.run(&["api"]).ends(1);
    machine.set("FLEXFEED_REQUIRE_PEERS", "1");
    fs::remove_dir_all(machine.target("tools/schemathesis")).unwrap();
    machine.stand_in("python3", "exit 1");
    let missing = machine.run(&["api"]);
    missing.ends(1).says(&["schemathesis is missing"]);
}

/// Puts everything that lint calls on the machine; `deny` is the script of cargo-deny.
fn lint_machine(deny: &str) -> Machine {
    let machine = Machine::for_steps();
    let tree = "flexfeed-source flexfeed-receiver flexfeed-relay flexfeed-gateway flexfeed-console \
                flexfeed-swarm";
    machine.stand_in(
        "cargo",
        &format!(
            "case $* in\nmetadata*) echo '{{\"packages\": []}}' ;;\n\
             tree*) echo '{tree} v0.1.0 []' ;;\ninstall*) exit 101 ;;\nesac"
        ),
    );
    machine.stand_in("rustc", "echo rustc 1.95.0");
    machine.stand_in("shellcheck", "");
    machine.stand_in("sleep", "");
    machine.stand_in("cargo-deny", deny);
    machine
}

#[test]
fn lint_reports_skipped_checks() {
    let machine =
        lint_machine("case $* in --version) echo cargo-deny 9.0.0 ;; 'fetch db') exit 1 ;; esac");
    let lint = machine.run(&["lint"]);
    lint.ends(0)
        .says(&["!!! SKIPPED", "all well"])
        .called("cargo fmt --all --check")
        .called("cargo clippy --locked --lib --bins -p flexfeed-source")
        .called("cargo clippy --locked --workspace --all-targets --all-features -- -D warnings")
        .called("cargo doc --locked --workspace --no-deps")
        .called("shellcheck -x");
}

#[test]
fn lint_fails_for_advisories_and_without_cargo_deny() {
    let machine =
        lint_machine("case $* in --version) echo cargo-deny 9.0.0 ;; *advisories*) exit 1 ;; esac");
    let lint = machine.run(&["lint"]);
    lint.ends(1).says_not(&["SKIPPED", "all well"]);
    let machine = lint_machine("echo cargo-deny 0.1.0");
    let lint = machine.run(&["lint"]);
    lint.ends(101)
        .says(&["Building cargo-deny"])
        .called("cargo install --locked --debug");
}

#[test]
fn lint_refuses_fault_injection_in_released_programs() {
    let machine = lint_machine("echo cargo-deny 9.0.0");
    let tree = "flexfeed-source flexfeed-receiver flexfeed-relay flexfeed-gateway flexfeed-console \
                flexfeed-swarm";
    machine.stand_in(
        "cargo",
        &format!(
            "case $* in\nmetadata*) echo '{{\"packages\": []}}' ;;\n\
             tree*) echo '{tree} v0.1.0 []'; \
             echo 'flexfeed-amt v0.1.0 [default,fault-injection]' ;;\nesac"
        ),
    );
    machine
        .run(&["lint"])
        .ends(1)
        .says(&["would have fault injection", "flexfeed-amt v0.1.0"])
        .called_not("cargo clippy");
}

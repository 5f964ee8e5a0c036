//! Commands of `./dev`: their arguments, and those that are written in shell.

use std::fs;

use crate::machine::{BUILD, DATABASE, Machine, NETWORK, WEB};

const NPM: &str = "case $1 in ci) mkdir -p node_modules ;; esac";

#[test]
fn help_and_usage_need_nothing() {
    let machine = Machine::bare();
    let help = machine.dev("help");
    help.ends(0)
        .says(&["./dev demo", "./dev sabotage", "DEMO_SECONDS=60", "--yes"]);
    machine.dev("").ends(0).says(&["./dev demo"]);
    machine.dev("test --help").ends(0).says(&["./dev demo"]);
    machine.dev("simulate --help").ends(0).says(&["./dev demo"]);
    machine
        .dev("pictures")
        .ends(2)
        .says(&["unknown command 'pictures'"])
        .says(&[
            "there are demo, test, test-upgrade,",
            "helm, test-kube and help",
        ]);
    for (line, text) in [
        ("test --fast", "unknown option '--fast'"),
        ("fuzz --quickly", "unknown option '--quickly'"),
        ("demo now", "'demo' takes no 'now'"),
        ("lint fast", "'lint' takes no 'fast'"),
        ("fuzz control 5 more", "'fuzz' takes no 'more'"),
        ("api some", "'some' is no number"),
    ] {
        machine.dev(line).ends(2).says(&[text]);
    }
}

#[test]
fn every_command_of_the_help_is_known() {
    let machine = Machine::bare();
    let help = machine.dev("help").output;
    let listed = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ./dev "));
    let mut commands = 0;
    for line in listed {
        let command = line.split(' ').next().unwrap();
        let unknown = machine.dev(&format!("{command} --help"));
        unknown.says_not(&["unknown command"]);
        commands += 1;
    }
    assert!(commands > 15, "{help}");
}

#[test]
fn steps_in_rust_are_built_apart_and_get_their_operands() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK} {DATABASE} {WEB} shellcheck"));
    machine.rust("1.94.0");
    let build = format!(
        "cargo build --quiet --locked --package xtask --target-dir {}",
        machine.target("xtask").display()
    );
    for line in [
        "sabotage",
        "lint",
        "figures",
        "fuzz control 5",
        "api 7",
        "test-upgrade v1 --build",
        "test-tarball a.tar.gz",
        "tarball folder",
    ] {
        machine
            .dev(line)
            .ends(3)
            .says(&[&format!("xtask ran {line}")])
            .called(&build);
    }
    let chromium = machine.path("bin/chromium");
    let test = format!("xtask ran test python3 {}", chromium.display());
    machine.dev("test").ends(3).says(&[&test]);
}

#[test]
fn figures_need_rust_and_nothing_else() {
    let machine = Machine::bare();
    machine.install("cc");
    machine.rust("1.94.0");
    machine.dev("figures").ends(3).says(&["xtask ran figures"]);
}

#[test]
fn bench_and_plots_pass_their_arguments_on() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK} {DATABASE} {WEB}"));
    machine.rust("1.94.0");
    machine.stand_in("npm", NPM);
    machine
        .dev("bench gen_vs")
        .ends(0)
        .called("npm run --silent build")
        .called("cargo run --release --locked -p flexfeed-testbed --bin flexfeed-bench -- gen_vs");
    machine.dev("plots million --redraw").ends(0).called(
        "cargo run --release --locked -p flexfeed-testbed --bin flexfeed-bench -- --plots docs \
         million --redraw",
    );
}

#[test]
fn simulate_passes_its_arguments_and_its_exit_code_on() {
    let machine = Machine::bare();
    machine.install(BUILD);
    machine.rust("1.94.0");
    machine
        .dev("simulate --seed 17 -v --yes")
        .ends(1)
        .called("cargo build --locked -p flexfeed-simulation")
        .says(&["simulated --seed 17 -v"])
        .says_not(&["--yes"]);
    machine.dev("simulate").ends(1).says(&["simulated"]);
}

#[test]
fn the_dashboard_needs_node_alone() {
    let machine = Machine::bare();
    machine
        .dev("web")
        .ends(2)
        .says(&["Node.js", "npm", "nodejs npm"])
        .says_not(&["libclang"]);
    machine.stand_in("node", "echo v16.20.2");
    machine.stand_in("npm", NPM);
    machine
        .dev("web")
        .ends(2)
        .says(&["Node.js 18.18.0 or newer"]);
    machine.stand_in("node", "echo v18.20.4");
    machine
        .dev("web")
        .ends(0)
        .called("npm ci")
        .called("npm run --silent build");
    // Its packages are got once.
    machine
        .dev("web")
        .ends(0)
        .called_not("npm ci")
        .called("npm run --silent build");
    machine.stand_in("npm", "case $1 in run) exit 1 ;; esac");
    machine.dev("web").ends(1);
}

#[test]
fn images_need_an_engine_that_can_build_them() {
    let machine = Machine::bare();
    machine
        .dev("images --quickly")
        .ends(2)
        .says(&["unknown option '--quickly'", "--prebuilt DIR"]);
    machine
        .dev("images --prebuilt")
        .ends(2)
        .says(&["--prebuilt needs a folder"]);
    machine
        .dev("images --prebuilt /nowhere")
        .ends(2)
        .says(&["no flexfeed-source in /nowhere"]);
    machine
        .dev("images")
        .ends(2)
        .says(&["there is no Docker here", "docker.io"]);
    let no_daemon = "case $1 in version) echo \"Cannot connect to the Docker daemon\" >&2; exit 1 ;; \
                     esac";
    machine.stand_in("docker", no_daemon);
    machine
        .dev("images")
        .ends(2)
        .says(&["no Docker engine answers", "Cannot connect"]);
    let no_buildkit = "case $* in version*) echo 28.0.0 ;; buildx*) exit 1 ;; esac";
    machine.stand_in("docker", no_buildkit);
    machine
        .dev("images")
        .ends(2)
        .says(&["cannot build with BuildKit"]);
}

#[test]
fn images_are_built_with_their_labels() {
    let machine = Machine::bare();
    let docker =
        "case $* in \"image inspect\"*) exit 1 ;; build*) exit 1 ;; *) echo 20.10.24 ;; esac";
    machine.stand_in("docker", docker);
    machine.stand_in("git", "echo 0123456789abcdef");
    machine
        .dev("images --local-base")
        .ends(2)
        .says(&["apt-get install -y --no-install-recommends mmdebstrap"]);
    machine.stand_in("mmdebstrap", "");
    machine
        .dev("images --local-base")
        .ends(2)
        .says(&["has to be run as root"]);
    machine
        .dev("images --tag mine")
        .ends(1)
        .says(&[
            "compiles everything inside Docker",
            "the images could not be built",
        ])
        .called("--target source --tag flexfeed/source:mine --tag flexfeed/source:latest")
        .called("--build-arg REVISION=0123456789abcdef");
}

#[test]
fn programs_with_fault_injection_get_into_no_image() {
    let machine = Machine::bare();
    machine.install("cc");
    machine.rust("1.94.0");
    let folder = machine.programs("debug", "");
    let folder = folder.to_str().unwrap();
    machine
        .dev_with(&["images", "--prebuilt", folder])
        .ends(3)
        .says(&[&format!("xtask ran refuse-faults {folder}")]);
}

#[test]
fn without_an_engine_the_tests_of_images_are_skipped_or_fail() {
    let mut machine = Machine::bare();
    machine.stand_in("python3", "echo tested \"$@\"");
    machine
        .dev("test-docker")
        .ends(0)
        .says(&["!!! SKIPPED", "NOT tested"]);
    machine.set("FLEXFEED_REQUIRE_PEERS", "1");
    machine
        .dev("test-docker")
        .ends(2)
        .says(&["there is no Docker here"]);
}

#[test]
fn compose_is_built_where_docker_has_none() {
    let machine = Machine::bare();
    machine.stand_in("python3", "echo tested \"$@\"");
    machine.stand_in("docker", "echo 20.10.24");
    machine
        .dev("test-docker test_image")
        .ends(0)
        .says(&["tested -m run test_image"])
        .says_not(&["Building Compose"]);
    let no_compose = "case $1 in compose) exit 1 ;; *) echo 20.10.24 ;; esac";
    machine.stand_in("docker", no_compose);
    let without_go = machine.dev("test-docker");
    without_go.ends(0).says_not(&["Building Compose"]);
    machine.stand_in("go", "case $1 in env) echo go1.26.8 ;; *) exit 1 ;; esac");
    machine.stand_in("sleep", "");
    machine
        .dev("test-docker")
        .ends(0)
        .says(&["Building Compose 2.40.3", "!!! It could not be built"])
        .says(&["tested -m run"]);
}

#[test]
fn the_chart_needs_helm_or_go_and_python() {
    let machine = Machine::bare();
    machine
        .dev("helm")
        .ends(2)
        .says(&["Helm 3.14.0 or newer", "Python 3"])
        .says_not(&["libclang"]);
    machine.stand_in("go", "echo go1.19.8");
    machine.stand_in("python3", "");
    machine
        .dev("helm")
        .ends(2)
        .says(&["Go 1.24 or newer"])
        .says_not(&["Python 3"]);
    machine.stand_in("helm", "echo v3.9.0");
    machine.dev("helm").ends(2).says(&["Helm 3.14.0 or newer"]);
    let go = "case $1 in env) echo go1.26.8 ;; install) exit 1 ;; esac";
    machine.stand_in("go", go);
    machine.stand_in("sleep", "");
    machine
        .dev("helm")
        .ends(1)
        .called("go install")
        .says(&["Helm could not be built"]);
}

#[test]
fn the_chart_is_linted() {
    let machine = Machine::bare();
    let helm = "case $1 in version) echo v3.18.0 ;; lint) exit 1 ;; esac";
    machine.stand_in("helm", helm);
    machine.file("helm/flexfeed/ci/one.yaml", "");
    let python = "case $* in \"-m venv \"*) mkdir -p \"$3/bin\"\n\
                  printf \"#!/bin/sh\\necho 1.37.0\\n\" >\"$3/bin/python\"\n\
                  cp \"$3/bin/python\" \"$3/bin/pip\"; chmod +x \"$3/bin/\"* ;; esac";
    machine.stand_in("python3", python);
    machine
        .dev("helm")
        .ends(1)
        .called("helm lint --strict")
        .says(&["helm lint does not like"]);
    machine
        .dev("test-kube --prefix x")
        .ends(2)
        .says(&["kubectl is missing"]);
    assert!(fs::exists(machine.target("tools/python/bin/python")).unwrap());
}

//! Missing requirements of `./dev`: it names them, installs them, or prints the line to run.

use std::fs;
use std::path::Path;

use crate::machine::{BUILD, DATABASE, Machine, NETWORK, WEB};

/// As sudo does: runs the command, found on the caller's `PATH`.
const SUDO: &str = "PATH=${0%/*}; [ \"$1\" != -n ] || shift; \"$@\"";

const RUSTUP: &str = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | \
                      sh -s -- -y --no-modify-path --default-toolchain 1.95.0";

#[test]
fn an_ordinary_user_gets_everything_named_and_one_line_to_run() {
    let machine = Machine::bare();
    machine.apt();
    let line = format!(
        "  su -c 'apt-get update && apt-get install -y --no-install-recommends git gcc libc6-dev \
         g++ make cmake clang libclang-dev curl ca-certificates iproute2 nftables util-linux \
         python3-feedparser' && {RUSTUP}"
    );
    machine
        .dev("demo --yes")
        .ends(2)
        .says(&[" git", "C compiler", "C++ compiler", " make", " cmake"])
        .says(&[" clang", " libclang", " ip", " nft", " unshare", " nsenter"])
        .says(&[" setpriv", "reader of Atom files", "Rust 1.94 or newer"])
        .says(&[" curl", &line])
        .called_not("apt-get")
        .called_not("curl");
    machine
        .dev("bench")
        .ends(2)
        .says(&[" libclang", "nftables", "postgresql"])
        .says_not(&["feedparser"]);
    machine.dev("lint").ends(2).says(&["shellcheck"]);
}

#[test]
fn with_sudo_nothing_is_installed_without_leave() {
    let machine = Machine::bare();
    machine.apt();
    machine.stand_in("sudo", SUDO);
    let line = "sudo apt-get update && sudo apt-get install -y --no-install-recommends git gcc";
    machine
        .dev("demo")
        .ends(2)
        .says(&[line, &format!("&& {RUSTUP}"), "./dev demo --yes"])
        .says_not(&["Run it now?"])
        .called_not("apt-get")
        .called_not("sudo")
        .called_not("curl");
    let installer = "installer -y --no-modify-path --default-toolchain 1.95.0 --profile minimal \
                     --component rustfmt --component clippy";
    let build = "cargo build --locked -p flexfeed-source -p flexfeed-receiver -p flexfeed-testbed \
                 --bin flexfeed-source --bin flexfeed-receiver --bin flexfeed-lore \
                 --bin flexfeed-demo";
    machine
        .dev("demo --yes")
        .ends(7)
        .called("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get")
        .called(installer)
        .called(build)
        .says(&["the demo ran with 3", "Everything needed is there now."])
        .says(&["first build", "minutes on 2 cores"]);
    machine
        .dev("demo")
        .ends(7)
        .called_not("sudo")
        .says_not(&["Missing"]);
}

#[test]
fn without_rights_from_sudo_the_line_is_printed() {
    let machine = Machine::bare();
    machine.apt();
    machine.stand_in("sudo", "echo \"a password is required\" >&2; exit 1");
    machine
        .dev("demo --yes")
        .ends(2)
        .says(&["sudo did not give the rights", "su -c 'apt-get update"])
        .called_not("apt-get");
}

#[test]
fn at_a_terminal_it_asks() {
    if !Path::new("/usr/bin/script").exists() {
        eprintln!("*** SKIPPED: there is no program \"script\" ***");
        return;
    }
    let machine = Machine::bare();
    machine.apt();
    machine.stand_in("sudo", SUDO);
    machine
        .dev_at_terminal("n", "demo")
        .ends(2)
        .says(&["Run it now? [y/N]", "sudo apt-get update"])
        .called_not("apt-get")
        .called_not("curl");
    machine
        .dev_at_terminal("y", "demo")
        .ends(7)
        .called("sudo env DEBIAN_FRONTEND=noninteractive apt-get")
        .says(&["the demo ran"]);
}

#[test]
fn root_installs_without_asking() {
    let machine = Machine::bare();
    machine.stand_in("id", "echo 0");
    machine
        .dev("demo --yes")
        .ends(2)
        .says(&["There is no apt-get here", "libclang-dev", "nftables"])
        .says(&[RUSTUP]);
    machine.apt();
    machine
        .dev("demo")
        .ends(7)
        .called("apt-get -o Acquire::Retries=3 update")
        .called("installer -y");
}

#[test]
fn a_failed_installation_is_an_error() {
    let machine = Machine::bare();
    machine.stand_in("id", "echo 0");
    machine.apt();
    machine.stand_in("apt-get", "echo \"E: no such package\" >&2; exit 100");
    machine
        .dev("demo")
        .ends(1)
        .says(&["E: no such package", "apt-get could not install"]);
}

#[test]
fn rust_is_found_where_it_is_hidden_or_else_installed() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK} curl"));
    let line = format!("  {RUSTUP}");
    machine
        .dev("demo")
        .ends(2)
        .says(&[&line, "./dev demo --yes"])
        .says_not(&["apt-get"]);
    machine.rust("1.75.0");
    machine
        .dev("demo")
        .ends(2)
        .says(&["Rust 1.75.0 is here", &line]);
    machine.stand_in("rustup", "exit 1");
    machine
        .dev("demo")
        .ends(2)
        .says(&["  rustup toolchain install 1.95.0 --profile minimal"]);
    // A toolchain other than the pinned one will do, if it is new enough.
    let newer = "case $* in 'run stable rustc --version') echo 'rustc 1.94.0 (x)' ;; esac";
    machine.stand_in("rustup", newer);
    let rustc = "[ \"${RUSTUP_TOOLCHAIN:-}\" = stable ] && echo 'rustc 1.94.0 (x)' || \
                 echo 'rustc 1.75.0 (x)'";
    machine.stand_in("rustc", rustc);
    machine.dev("demo").ends(7);
    machine.remove("rustup");
    for version in ["1.94.0", "2.0.0-nightly"] {
        machine.rust(version);
        machine.dev("demo").ends(7);
    }
}

#[test]
fn tools_that_do_not_work_are_missing() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK}"));
    machine.rust("1.94.0");
    let broken = "echo \"fatal error: cstdio: No such file or directory\" >&2; exit 1";
    machine.stand_in("c++", broken);
    machine.dev("demo").ends(2).says(&["a C++ compiler", "g++"]);
    machine.install("c++");
    fs::remove_file(machine.path("root/usr/lib/llvm-14/lib/libclang.so.1")).unwrap();
    // Another library, and a folder without programs.
    machine.system("usr/lib/llvm-14/lib/libclang-cpp.so.14", "");
    fs::create_dir_all(machine.path("root/usr/lib/postgresql/15/bin")).unwrap();
    machine
        .dev("bench")
        .ends(2)
        .says(&["libclang-dev", " postgresql"]);
    let initdb = machine.path("root/usr/lib/postgresql/15/bin/initdb");
    machine.stand_in_at(&initdb, "");
    machine.dev("bench").ends(2).says_not(&["postgresql"]);
    machine.install("libclang");
    machine.stand_in("python3", "[ \"$2\" = \"import sqlite3\" ]");
    machine.dev("demo").ends(2).says(&["python3-feedparser"]);
    machine.install("newsboat");
    machine.dev("demo").ends(7);
}

#[test]
fn the_decoder_is_needed_by_the_tests_alone() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK} {DATABASE} {WEB}"));
    machine.rust("1.94.0");
    machine.stand_in("python3", "[ \"$2\" != \"import cryptography\" ]");
    machine
        .dev("test")
        .ends(2)
        .says(&["cryptography for Python", "python3-cryptography"])
        .says_not(&["feedparser"]);
    machine.dev("demo").ends(7);
}

#[test]
fn where_virtual_networks_are_refused_the_remedy_is_named() {
    let machine = Machine::bare();
    machine.install(&format!("{BUILD} {NETWORK} {DATABASE} {WEB}"));
    machine.rust("1.94.0");
    machine.stand_in("unshare", "! echo \"$*\" | grep -q bridge");
    let remedy = "sudo modprobe -a bridge veth nf_tables";
    machine.dev("test").ends(2).says(&[remedy]);
    machine.stand_in("unshare", "exit 1");
    machine
        .dev("test")
        .ends(2)
        .says(&["virtual networks cannot be made here", "--privileged"]);
    for (setting, value, remedy) in [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces="),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "kernel.unprivileged_userns_clone=1",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ] {
        machine.system(&format!("proc/sys/{setting}"), &format!("{value}\n"));
        let remedy = format!("sudo sysctl -w {remedy}");
        machine.dev("sabotage").ends(2).says(&[&remedy]);
    }
    machine.stand_in("id", "echo 0");
    machine
        .dev("demo")
        .ends(2)
        .says(&["CAP_SYS_ADMIN", "--privileged"])
        .called_not("cargo");
    machine.stand_in("uname", "echo Darwin");
    machine.dev("demo").ends(2).says(&["need Linux"]);
}

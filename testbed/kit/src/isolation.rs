//! Tests that run again in a process, or in network namespaces, of their own.
//!
//! All integration tests of a crate are one program, and its tests run side by side. A test that
//! measures its whole process, or changes interfaces, routes or mounts, starts the program again
//! with itself as the only test:
//!
//! ```no_run
//! fn routes_decide() {
//!     if !kit::in_namespace!("ip link add a type veth peer name b") {
//!         return;
//!     }
//!     // Here `a` and `b` exist, for this test alone.
//! }
//! ```

use std::process::Command;

/// Variable that names the test which a process runs alone.
const ALONE: &str = "TEST_KIT_ALONE";

/// Returns the name of the calling test as `--exact` takes it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn marker() {}
        $crate::isolation::enclosing(&marker)
    }};
}

/// Whether this process runs the calling test alone; otherwise runs it in such a process to its
/// end.
#[macro_export]
macro_rules! alone {
    () => {
        $crate::isolation::is_alone($crate::test_name!())
    };
}

/// Whether this process runs the calling test alone, in network and mount namespaces of its own;
/// otherwise runs it there to its end, after the given shell lines. The loopback interface is up.
///
/// Inside, the test has the rights of root over its own networks and mounts, whichever user started
/// it.
#[macro_export]
macro_rules! in_namespace {
    () => {
        $crate::in_namespace!("")
    };
    ($lines:expr) => {
        $crate::isolation::is_in_namespace($crate::test_name!(), $lines)
    };
}

/// Returns the path, within its crate, of the function that contains `marker`.
#[doc(hidden)]
pub fn enclosing<T>(_marker: &T) -> &'static str {
    let path = std::any::type_name::<T>();
    let (_, path) = path.split_once("::").unwrap();
    let mut path = path.strip_suffix("::marker").unwrap();
    // The body of an async function is a closure.
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    path
}

#[doc(hidden)]
pub fn is_alone(test: &str) -> bool {
    is_rerun(test, || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command
    })
}

#[doc(hidden)]
pub fn is_in_namespace(test: &str, lines: &str) -> bool {
    is_rerun(test, || {
        let script =
            format!("set -e\nip link set lo up\n{lines}\nexec \"$0\" --exact \"$1\" --nocapture\n");
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c"])
            .arg(script)
            .arg(std::env::current_exe().unwrap())
            .arg(test);
        command
    })
}

/// Whether this process runs `test` alone; otherwise runs it by `command` and requires it to pass.
fn is_rerun(test: &str, command: impl FnOnce() -> Command) -> bool {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return true;
    }
    let mut command = command();
    let output = command.env(ALONE, test).output();
    let output = output.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{test} alone: {}\n{printed}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::parent_id;
    use std::process::id;

    #[test]
    fn names_are_those_of_the_test_program() {
        assert_eq!(
            test_name!(),
            "isolation::tests::names_are_those_of_the_test_program"
        );
        let in_closure = || test_name!();
        assert_eq!(
            in_closure(),
            "isolation::tests::names_are_those_of_the_test_program"
        );
    }

    #[test]
    fn a_test_runs_alone_once() {
        let file = |parent: u32| std::env::temp_dir().join(format!("flexfeed-kit-{parent}"));
        if alone!() {
            std::fs::write(file(parent_id()), id().to_string()).unwrap();
            return;
        }
        let file = file(id());
        let other: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        assert_ne!(other, id());
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_namespace_has_its_own_interfaces() {
        if !in_namespace!("ip link add kit type veth peer name tik") {
            return;
        }
        let interfaces = std::fs::read_to_string("/proc/net/dev").unwrap();
        assert!(interfaces.contains("kit:"), "{interfaces}");
        assert_eq!(interfaces.lines().count(), 5, "{interfaces}");
    }
}

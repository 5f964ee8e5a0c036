//! A made-up machine: a folder of stand-in programs in front of the `PATH`, and a made-up clone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Programs of every system that the steps call.
const BASICS: [&str; 14] = [
    "cat",
    "env",
    "grep",
    "kill",
    "mkdir",
    "nice",
    "setpriv",
    "sh",
    "sha256sum",
    "gzip",
    "tail",
    "tar",
    "uname",
    "cksum",
];

/// A machine on which nothing real is built, installed or asked for.
pub struct Machine {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

/// What a step did.
pub struct Outcome {
    /// Exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
    /// Calls of stand-ins, a line each.
    pub calls: String,
}

impl Machine {
    /// Makes a machine with the basic programs and a clone whose path has a blank.
    pub fn new() -> Self {
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
        };
        fs::create_dir_all(machine.bin()).unwrap();
        for program in BASICS {
            let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .map(|folder| folder.join(program))
                .find(|path| path.exists())
                .unwrap();
            std::os::unix::fs::symlink(found, machine.bin().join(program)).unwrap();
        }
        machine.file("dev", "");
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\n\n[workspace.dependencies]\n";
        machine.file("Cargo.toml", manifest);
        let faults = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/service/src/faults.rs");
        let faults = fs::read_to_string(faults).unwrap();
        machine.file("crates/service/src/faults.rs", &faults);
        machine.file("dev.d/schemathesis.txt", "schemathesis==1\n");
        machine.script("dev", "echo ./dev $*");
        machine.script(
            "services/console/fuzz-api.sh",
            "echo fuzzed $* with $FUZZ_SEED",
        );
        machine.file("fuzz/targets/control.rs", "");
        machine.file("fuzz/targets/feed.rs", "");
        machine
    }

    fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Returns a path in the clone.
    pub fn clone(&self, path: &str) -> PathBuf {
        self.folder.path().join("a clone").join(path)
    }

    /// Returns a path in the folder of build results.
    pub fn target(&self, path: &str) -> PathBuf {
        self.folder.path().join("target dir").join(path)
    }

    /// Writes a file of the clone.
    pub fn file(&self, path: &str, text: &str) {
        let path = self.clone(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a shell script of the clone.
    pub fn script(&self, path: &str, script: &str) {
        self.file(path, &format!("#!/bin/sh\n{script}\n"));
        executable(&self.clone(path));
    }

    /// Puts a program on the machine that notes how it was called and does as `script` says.
    pub fn stand_in(&self, program: &str, script: &str) {
        let path = self.bin().join(program);
        self.stand_in_at(&path, script);
    }

    /// The same at any path.
    pub fn stand_in_at(&self, path: &Path, script: &str) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let log = self.folder.path().join("log");
        let text = format!(
            "#!/bin/sh\necho \"{name} $*\" >>'{}'\nPATH=/usr/bin:/bin\n{script}\n",
            log.display()
        );
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A new file each time: a link would lead to the real program.
        let _ = fs::remove_file(path);
        fs::write(path, text).unwrap();
        executable(path);
    }

    /// Puts stand-ins of all five programs into a folder of build results.
    pub fn programs(&self, folder: &str, script: &str) -> PathBuf {
        for part in ["source", "receiver", "relay", "gateway", "console"] {
            let path = self.target(folder).join(format!("flexfeed-{part}"));
            self.stand_in_at(&path, script);
        }
        self.target(folder)
    }

    /// Sets an environment variable for the steps that follow.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Runs a step.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let log = self.folder.path().join("log");
        fs::write(&log, "").unwrap();
        let output = Command::new("sh")
            .args(["-c", "exec 2>&1; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments)
            .current_dir(self.clone(""))
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", self.bin())
            .env("CARGO_TARGET_DIR", self.target(""))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        Outcome {
            code: output.status.code().unwrap_or(-1),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            calls: fs::read_to_string(&log).unwrap(),
        }
    }
}

fn executable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Outcome {
    /// Requires an exit code.
    #[track_caller]
    pub fn ends(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "it printed:\n{}", self.output);
        self
    }

    /// Requires that each text was printed.
    #[track_caller]
    pub fn says(&self, texts: &[&str]) -> &Self {
        for text in texts {
            let output = &self.output;
            assert!(output.contains(text), "no {text:?} in:\n{output}");
        }
        self
    }

    /// Requires that none of the texts was printed.
    #[track_caller]
    pub fn says_not(&self, texts: &[&str]) -> &Self {
        for text in texts {
            let output = &self.output;
            assert!(!output.contains(text), "{text:?} in:\n{output}");
        }
        self
    }

    /// Requires a call of a stand-in.
    #[track_caller]
    pub fn called(&self, call: &str) -> &Self {
        let calls = &self.calls;
        assert!(calls.contains(call), "no call {call:?} in:\n{calls}");
        self
    }

    /// Requires that no call begins with `call`.
    #[track_caller]
    pub fn called_not(&self, call: &str) -> &Self {
        let calls = &self.calls;
        let found = calls.lines().any(|line| line.starts_with(call));
        assert!(!found, "a call {call:?} in:\n{calls}");
        self
    }
}

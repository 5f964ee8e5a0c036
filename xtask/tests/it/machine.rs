//! Made-up machines: a folder of stand-in programs as the only `PATH`, a made-up clone, and a
//! made-up system beneath `FLEXFEED_DEV_SYSROOT`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Programs of every system that `./dev` calls.
const BARE: &str = "sh cat cp dirname env find grep mkdir mktemp readlink rm rmdir sed uname";

/// Programs of every system that steps call in addition.
const FOR_STEPS: &str = "cksum gzip kill nice setpriv sha256sum tail tar";

/// Programs that `./dev` needs to build anything, to make virtual networks, and so on.
pub const BUILD: &str = "git cc c++ make cmake clang libclang";
/// See [`BUILD`].
pub const NETWORK: &str = "ip nft unshare nsenter setpriv feedparser";
/// See [`BUILD`].
pub const DATABASE: &str = "initdb postgres";
/// See [`BUILD`].
pub const WEB: &str = "node npm chromium";

/// A machine on which nothing real is built, installed or asked for.
pub struct Machine {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

/// Outcome of a command.
pub struct Outcome {
    /// Exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
    /// Calls of stand-ins, a line each.
    pub calls: String,
}

impl Machine {
    /// Makes a machine with an ordinary user, a few basic programs, a clone of `./dev`, and nothing
    /// to build with.
    pub fn bare() -> Self {
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
        };
        for folder in [
            "bin",
            "home",
            "tmp",
            "root/proc/sys/kernel",
            "root/proc/sys/user",
        ] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        machine.link(BARE);
        machine.stand_in("id", "echo 1000");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in [
            "needs",
            "install",
            "namespaces",
            "web",
            "engine",
            "images",
            "kube",
        ] {
            let script = format!("dev.d/{name}.sh");
            machine.file(&script, &fs::read_to_string(root.join(&script)).unwrap());
        }
        machine.file("dev", &fs::read_to_string(root.join("dev")).unwrap());
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\nrust-version = \"1.94\"\n\n\
                        [workspace.dependencies]\n";
        machine.file("Cargo.toml", manifest);
        machine.file("rust-toolchain.toml", "[toolchain]\nchannel = \"1.95.0\"\n");
        machine.file("web/package-lock.json", "{}");
        machine.file("testbed/docker/run.py", "");
        machine
    }

    /// Makes a machine with what steps find in every clone and on every system.
    pub fn for_steps() -> Self {
        let machine = Self::bare();
        machine.link(FOR_STEPS);
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

    /// Puts programs of this system on the machine.
    fn link(&self, programs: &str) {
        for program in programs.split(' ') {
            let path = std::env::var_os("PATH").unwrap();
            let found = std::env::split_paths(&path)
                .map(|folder| folder.join(program))
                .find(|path| path.exists());
            symlink(found.unwrap(), self.path("bin").join(program)).unwrap();
        }
    }

    /// Returns a path on the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Returns a path in the clone, whose own path has a blank.
    pub fn clone(&self, path: &str) -> PathBuf {
        self.path("a clone").join(path)
    }

    /// Returns a path in the folder of build results.
    pub fn target(&self, path: &str) -> PathBuf {
        self.path("target dir").join(path)
    }

    /// Writes a file of the clone.
    pub fn file(&self, path: &str, text: &str) {
        write(&self.clone(path), text);
    }

    /// Writes a file of the made-up system.
    pub fn system(&self, path: &str, text: &str) {
        write(&self.path("root").join(path), text);
    }

    /// Writes a shell script of the clone.
    pub fn script(&self, path: &str, script: &str) {
        self.file(path, &format!("#!/bin/sh\n{script}\n"));
        executable(&self.clone(path));
    }

    /// Puts a program on the machine that notes how it was called and does as `script` says.
    pub fn stand_in(&self, program: &str, script: &str) {
        self.stand_in_at(&self.path("bin").join(program), script);
    }

    /// The same at any path.
    pub fn stand_in_at(&self, path: &Path, script: &str) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let log = self.path("log");
        // A new file each time: a link would lead to the real program.
        let _ = fs::remove_file(path);
        let text = format!(
            "#!/bin/sh\nprintf '%s\\n' \"{name} $*\" >>'{}'\nPATH=/usr/bin:/bin\n{script}\n",
            log.display()
        );
        write(path, &text);
        executable(path);
    }

    /// Removes a program from the machine.
    pub fn remove(&self, program: &str) {
        fs::remove_file(self.path("bin").join(program)).unwrap();
    }

    /// Puts things on the machine as if their packages were installed.
    pub fn install(&self, things: &str) {
        for thing in things.split(' ') {
            match thing {
                "libclang" => self.system("usr/lib/llvm-14/lib/libclang.so.1", ""),
                "feedparser" => self.stand_in("python3", ""),
                "node" => self.stand_in("node", "echo v20.0.0"),
                _ => self.stand_in(thing, ""),
            }
        }
    }

    /// Installs a Rust toolchain, whose Cargo makes the programs that `./dev` starts.
    pub fn rust(&self, version: &str) {
        let rustc = format!("echo 'rustc {version} (0123456789 2026-01-01)'");
        self.stand_in("rustc", &rustc);
        self.stand_in(
            "cargo",
            "mkdir -p \"$CARGO_TARGET_DIR/debug\" \"$CARGO_TARGET_DIR/xtask/debug\"\n\
             cd \"$CARGO_TARGET_DIR\"\n\
             make() { printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\"; chmod +x \"$1\"; }\n\
             make debug/flexfeed-demo 'echo the demo ran with $DEMO_SECONDS; exit 7'\n\
             make debug/flexfeed-simulate 'echo simulated \"$@\"; exit 1'\n\
             make xtask/debug/xtask 'echo xtask ran \"$@\"; exit 3'",
        );
    }

    /// Installs an apt-get whose packages contain what Debian's contain, and a curl that gets the
    /// installer of rustup.
    pub fn apt(&self) {
        let programs = "cc c++ git make cmake clang shellcheck ip nft unshare nsenter setpriv";
        self.install(&format!("{programs} feedparser"));
        self.rust("1.99.0");
        let spare = self.path("spare");
        let installer = format!(
            "echo installer $* >>\"{log}\"; mkdir -p \"$HOME/.cargo/bin\"; \
             cp \"{spare}/rustc\" \"{spare}/cargo\" \"$HOME/.cargo/bin/\"",
            log = self.path("log").display(),
            spare = spare.display()
        );
        self.stand_in(
            "curl",
            &format!(
                "while [ $# -gt 0 ]; do [ \"$1\" != -o ] || echo '{installer}' >\"$2\"; shift; done"
            ),
        );
        fs::create_dir(&spare).unwrap();
        for program in format!("{programs} python3 rustc cargo curl").split(' ') {
            fs::rename(self.path("bin").join(program), spare.join(program)).unwrap();
        }
        self.stand_in("apt-get", &self.apt_script());
    }

    fn apt_script(&self) -> String {
        format!(
            "case \" $* \" in *' install '*) ;; *) exit 0 ;; esac\n\
             for package in \"$@\"; do\n\
             case $package in\n\
             gcc) names=cc ;;\n\
             g++) names=c++ ;;\n\
             git | make | cmake | clang | curl | shellcheck) names=$package ;;\n\
             iproute2) names=ip ;;\n\
             nftables) names=nft ;;\n\
             util-linux) names='unshare nsenter setpriv' ;;\n\
             python3-feedparser) names=python3 ;;\n\
             libclang-dev) names=''; mkdir -p '{root}/usr/lib/llvm-14/lib'\n\
             : >'{root}/usr/lib/llvm-14/lib/libclang.so' ;;\n\
             ca-certificates) names=''; mkdir -p '{root}/etc/ssl/certs'\n\
             : >'{root}/etc/ssl/certs/ca-certificates.crt' ;;\n\
             *) continue ;;\n\
             esac\n\
             for name in $names; do cp '{spare}/'$name '{bin}/'$name; done\n\
             done",
            root = self.path("root").display(),
            spare = self.path("spare").display(),
            bin = self.path("bin").display()
        )
    }

    /// Puts stand-ins of all programs into a folder of build results.
    pub fn programs(&self, folder: &str, script: &str) -> PathBuf {
        for part in ["source", "receiver", "relay", "gateway", "console", "swarm"] {
            let path = self.target(folder).join(format!("flexfeed-{part}"));
            self.stand_in_at(&path, script);
        }
        self.target(folder)
    }

    /// Sets an environment variable for the commands that follow.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Runs a step in the clone.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.command("exec \"$0\" \"$@\"");
        command.arg(env!("CARGO_BIN_EXE_xtask")).args(arguments);
        command.current_dir(self.clone(""));
        self.outcome(command.output().unwrap())
    }

    /// Runs `./dev` from another folder and without a terminal; `line` is its command line.
    pub fn dev(&self, line: &str) -> Outcome {
        let arguments: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        self.dev_with(&arguments)
    }

    /// The same with arguments that have blanks.
    pub fn dev_with(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.command("exec sh \"$0\" \"$@\"");
        command.arg(self.clone("dev")).args(arguments);
        self.outcome(command.output().unwrap())
    }

    /// Runs `./dev` at a terminal where `answer` is typed.
    pub fn dev_at_terminal(&self, answer: &str, line: &str) -> Outcome {
        let inner = format!("cd / && sh '{}' {line}", self.clone("dev").display());
        let script = Command::new("sh")
            .args(["-c", "command -v script"])
            .output();
        let script = String::from_utf8(script.unwrap().stdout).unwrap();
        let mut command = self.command(&format!("echo {answer} | \"$0\" -qec \"$1\" /dev/null"));
        command.arg(script.trim()).arg(inner);
        self.outcome(command.output().unwrap())
    }

    /// Returns a shell with nothing but the machine's environment, whose errors are output.
    fn command(&self, script: &str) -> Command {
        fs::write(self.path("log"), "").unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec 2>&1; {script}")]);
        command.current_dir("/").stdin(Stdio::null()).env_clear();
        command.env("HOME", self.path("home"));
        command.env("PATH", self.path("bin"));
        command.env("TMPDIR", self.path("tmp"));
        command.env("SHELL", "/bin/sh").env("DEMO_SECONDS", "3");
        command.env("CARGO_TARGET_DIR", self.path("target dir"));
        command.env("FLEXFEED_DEV_SYSROOT", self.path("root"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Collects what a command did, and checks that it left no temporary files.
    fn outcome(&self, output: Output) -> Outcome {
        let left = fs::read_dir(self.path("tmp")).unwrap().count();
        let outcome = Outcome {
            code: output.status.code().unwrap_or(-1),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            calls: fs::read_to_string(self.path("log")).unwrap(),
        };
        assert_eq!(left, 0, "temporary files are left by:\n{}", outcome.output);
        outcome
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
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

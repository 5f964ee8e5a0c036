"""deploy/systemd: units that systemd understands and that give little away, and settings that the programs understand.

The programs are those of FLEXFEED_BIN_DIR.
"""

import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
UNITS = os.path.join(ROOT, "deploy", "systemd")
BINARIES = os.environ.get("FLEXFEED_BIN_DIR", os.path.join(ROOT, "target", "debug"))
PROGRAMS = ("source", "relay", "receiver", "console")
# The gateway has variables and no file of settings, and its unit is a template.
UNITS_OF = (*PROGRAMS, "gateway@")
LINK = "flexfeed://T@192.0.2.1:4433?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA&ch=lore"

# Maximum exposure level of systemd-analyze security, of 10.
EXPOSURE = 2.0

# Settings that cannot stand in the file, that a unit hands over in another way, or that have another form there.
ELSEWHERE = {"config", "link", "link_file", "feed"}


def example(name):
    """The text of an example of settings."""
    with open(f"{UNITS}/config/{name}.toml", encoding="utf-8") as file:
        return file.read()


def groups(text):
    """Runs of lines that are commented out: `#key = …` without a blank after the #, and what stands directly below."""
    return [run.rstrip("\n") for run in re.findall(r"^(?:#(?:\S.*)?\n)+", text + "\n", re.M) if not run.startswith("# ") and run.strip("#\n")]


def with_group(text, group):
    """The file with one group in force, in the place of what it says otherwise."""
    lines = [line[1:] for line in group.split("\n")]
    opened = "\n".join(lines)
    rest = text.replace(group, "")
    if lines[0].startswith("["):
        return f"{rest}\n{opened}\n"
    for line in lines:
        # A file with a value stands in the place of the value.
        key = line.split("=")[0].strip().removesuffix("_file")
        rest = re.sub(rf"^{key} = .*$", "", rest, count=1, flags=re.M)
    return f"{opened}\n{rest}"


class Settings(unittest.TestCase):
    """Examples of settings, by the programs' own check."""

    def check(self, name, text):
        """Returns the program's exit code and output."""
        with tempfile.TemporaryDirectory() as folder:
            for secret in ("webhook-secret", "database-url"):
                with open(f"{folder}/{secret}", "w", encoding="utf-8") as file:
                    file.write("sqlite:///a-file-with-something-secret\n")
            path = f"{folder}/{name}.toml"
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            environment = {key: value for key, value in os.environ.items() if not key.startswith("FLEXFEED_") and key != "DATABASE_URL"}
            if name == "receiver":
                # An own authority is for links without a pin.
                pinned = not re.search("^ca_file", text, re.M)
                environment["FLEXFEED_LINK"] = LINK if pinned else LINK.split("?")[0] + "?ch=lore"
            command = [f"{BINARIES}/flexfeed-{name}", "config", "check", "--config", path, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            return done.returncode, done.stdout + done.stderr

    def test_examples_are_understood_as_they_are(self):
        """An unknown key is refused: else the check proves nothing."""
        for name in PROGRAMS:
            with self.subTest(name):
                code, output = self.check(name, example(name))
                self.assertEqual(code, 0, output)
                code, output = self.check(name, "nonsense = 1\n" + example(name))
                self.assertEqual(code, 2, output)
                self.assertIn("nonsense", output)

    def test_all_that_is_commented_out_is_understood(self):
        """Each group by itself."""
        for name in PROGRAMS:
            text = example(name)
            found = groups(text)
            self.assertGreater(len(found), 3, name)
            for group in found:
                # Alternatives stand next to each other where they are about one thing.
                for part in self.parts(group):
                    with self.subTest(name, part=part):
                        code, output = self.check(name, with_group(text, part))
                        self.assertEqual(code, 0, output)

    def parts(self, group):
        """A table, and what belongs together, is one part; else each line is."""
        if group.startswith("#["):
            return [group]
        lines = group.split("\n")
        joined = [line for line in lines if re.match(r"#(cert|key|console\w*) ", line)]
        return [*(["\n".join(joined)] if joined else []), *[line for line in lines if line not in joined]]

    def test_every_setting_is_there(self):
        """All that the program knows, in force or commented out."""
        for name in PROGRAMS:
            with self.subTest(name):
                code, output = self.check(name, example(name))
                self.assertEqual(code, 0, output)
                settings = json.loads(output)["settings"]
                known = {one.get("key") or one["setting"] for one in settings}
                said = set(re.findall(r"^#?\[*(\w+)(?: = |\]\])", example(name), re.M))
                self.assertEqual(known - said - ELSEWHERE, set())


class Gateway(unittest.TestCase):
    """Its variables."""

    EXAMPLE = f"{UNITS}/config/gateway-example.env"

    def variables(self, commented):
        """Those in force, or those that are commented out."""
        with open(self.EXAMPLE, encoding="utf-8") as file:
            return dict(re.findall(rf"^{'#' if commented else ''}(FLEXFEED_\w+)=(.*)$", file.read(), re.M))

    def run_with(self, more):
        """Starts it as its unit does; returns its first notification to systemd, and its exit code after SIGTERM."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(f"{folder}/notify")
            notified.settimeout(30)
            environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"{folder}/notify"}
            # An address instead of a name, so that no name server is needed.
            environment |= {**self.variables(False), "FLEXFEED_GATEWAY_RELAY": "127.0.0.1:9", **more}
            with open(f"{folder}/log", "w+", encoding="utf-8") as log:
                running = subprocess.Popen([f"{BINARIES}/flexfeed-gateway"], env=environment, stdout=log, stderr=log)
                try:
                    heard = notified.recv(1000).decode()
                except TimeoutError:
                    log.seek(0)
                    heard = log.read()
                finally:
                    running.send_signal(signal.SIGTERM)
                    code = running.wait(30)
            return heard, code

    def test_the_example_is_understood(self):
        """As it is, and with each line that is commented out; a wrong value is not."""
        for name, value in [("FLEXFEED_GATEWAY_TTL", "0"), *self.variables(True).items()]:
            value = "127.0.0.1:0" if name.endswith("HTTP") else value
            with self.subTest(name):
                heard, code = self.run_with({name: value})
                self.assertIn("READY=1", heard)
                self.assertEqual(code, 0)
        self.assertNotIn("READY=1", self.run_with({"FLEXFEED_GATEWAY_TTL": "far"})[0])

    def test_every_variable_is_there(self):
        """All that its help names."""
        done = subprocess.run([f"{BINARIES}/flexfeed-gateway", "--help"], capture_output=True, text=True, check=True)
        known = set(re.findall(r"FLEXFEED_GATEWAY_\w+(?==)", re.sub(r"\s+", " ", done.stdout)))
        self.assertEqual({*self.variables(False), *self.variables(True)}, known)


class CoreDumps(unittest.TestCase):
    """Programs forbid them by themselves, and units once more."""

    def limit(self, process):
        """The limit that a program has now."""
        with open(f"/proc/{process.pid}/limits", encoding="utf-8") as file:
            return re.search(r"^Max core file size +(\w+)", file.read(), re.M).group(1)

    def start(self, *command, **more):
        """A program that is allowed as large a dump as its parent may allow."""

        def allow():
            most = resource.getrlimit(resource.RLIMIT_CORE)[1]
            resource.setrlimit(resource.RLIMIT_CORE, (most, most))

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, preexec_fn=allow, **quiet, **more)

    def test_programs_forbid_them(self):
        """Seen while each waits for an answer."""
        if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
            self.skipTest("core dumps are forbidden here already")
        for name in PROGRAMS:
            with self.subTest(name), socket.create_server(("127.0.0.1", 0)) as silent:
                silent.settimeout(30)
                at = f"127.0.0.1:{silent.getsockname()[1]}"
                running = self.start(f"{BINARIES}/flexfeed-{name}", "health", "--at", at)
                try:
                    with silent.accept()[0]:
                        self.assertEqual(self.limit(running), "0")
                finally:
                    running.kill()
                    running.wait()

    def test_the_gateway_forbids_them(self):
        """Seen once it is ready."""
        if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
            self.skipTest("core dumps are forbidden here already")
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(f"{folder}/notify")
            notified.settimeout(30)
            with open(Gateway.EXAMPLE, encoding="utf-8") as file:
                variables = dict(re.findall(r"^(FLEXFEED_\w+)=(.*)$", file.read(), re.M))
            environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"{folder}/notify", **variables}
            environment["FLEXFEED_GATEWAY_RELAY"] = "127.0.0.1:9"
            running = self.start(f"{BINARIES}/flexfeed-gateway", env=environment)
            try:
                notified.recv(1000)
                self.assertEqual(self.limit(running), "0")
            finally:
                running.kill()
                running.wait()

    def test_units_forbid_them(self):
        """Also for what a program starts, and before it runs."""
        for name in UNITS_OF:
            with open(f"{UNITS}/flexfeed-{name}.service", encoding="utf-8") as file:
                self.assertIn("\nLimitCORE=0\n", file.read(), name)


class Units(unittest.TestCase):
    """By systemd's own tools."""

    def setUp(self):
        if not shutil.which("systemd-analyze"):
            if os.environ.get("FLEXFEED_REQUIRE_PEERS"):
                self.fail("systemd-analyze is not here: apt-get install systemd")
            self.skipTest("systemd-analyze is not here")

    def unit(self, folder, name, drop_in=False):
        """A unit beside a program that is there, so that only what it says is looked at."""
        with open(f"{UNITS}/flexfeed-{name}.service", encoding="utf-8") as file:
            text = file.read()
        program = f"/usr/local/bin/flexfeed-{name.rstrip('@')}"
        variables = "/etc/flexfeed/gateway-%i.env" if name == "gateway@" else f"-/etc/default/flexfeed-{name}"
        self.assertIn(f"\nEnvironmentFile={variables}\n", text)
        self.assertRegex(text, rf"\nExecStart={program}[ \n]")
        if drop_in:
            with open(f"{UNITS}/flexfeed-relay.service.d/capture.conf", encoding="utf-8") as file:
                text += file.read()
        path = f"{folder}/flexfeed-{name}.service"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(program, "/bin/true"))
        return path

    def analyze(self, *arguments):
        """Returns the output of systemd-analyze."""
        done = subprocess.run(["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_units_are_sound(self):
        """No complaint at all; and a unit with a mistake has one."""
        with tempfile.TemporaryDirectory() as folder:
            for name in UNITS_OF:
                path = self.unit(folder, name)
                # Of a template, one unit is looked at.
                shown = path.replace("@.", "@office.")
                code, output = self.analyze("verify", "--man=no", shown)
                ours = [line for line in output.splitlines() if "flexfeed" in line]
                self.assertEqual((code, ours), (0, []), output)
            with open(path, "a", encoding="utf-8") as file:
                file.write("[Service]\nProtectSysten=strict\n")
            self.assertIn("ProtectSysten", self.analyze("verify", "--man=no", shown)[1])

    def test_units_give_little_away(self):
        """The exposure that systemd makes out, with the drop-in, too."""
        with tempfile.TemporaryDirectory() as folder:
            for name, drop_in in [*[(name, False) for name in UNITS_OF], ("relay", True)]:
                path = self.unit(folder, name, drop_in)
                _, output = self.analyze("security", "--offline=true", path)
                level = float(re.search(r"exposure level .*: ([\d.]+)", output).group(1))
                self.assertLessEqual(level, EXPOSURE, f"{name}: {output}")

    def test_users_and_files_are_sound(self):
        """sysusers.d and tmpfiles.d, in an empty system."""
        with tempfile.TemporaryDirectory() as root:
            for folder in ("etc/flexfeed", "var/lib"):
                os.makedirs(f"{root}/{folder}")
            for name in PROGRAMS:
                # As they are copied by a root with a strict umask.
                os.chmod(shutil.copy(f"{UNITS}/config/{name}.toml", f"{root}/etc/flexfeed/"), 0o600)
            for program, name in (("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")):
                path = shutil.which(program)
                if not path:
                    if os.environ.get("FLEXFEED_REQUIRE_PEERS"):
                        self.fail(f"{program} is not here: apt-get install systemd")
                    self.skipTest(f"{program} is not here")
                more = ["--create"] if name == "tmpfiles" else []
                command = [path, *more, f"--root={root}", f"{UNITS}/flexfeed.{name}.conf"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr if "rror" in done.stderr else ""), (0, ""), done.stderr)
            with open(f"{root}/etc/passwd", encoding="utf-8") as file:
                entry = re.search(r"^flexfeed:.*$", file.read(), re.M)
            self.assertIsNotNone(entry)
            modes = {name: os.stat(f"{root}/etc/flexfeed/{name}.toml").st_mode & 0o777 for name in PROGRAMS}
            # Relay and receiver run as users that systemd makes up: those are in no group that could be let in.
            self.assertEqual(modes, {"source": 0o640, "console": 0o640, "relay": 0o644, "receiver": 0o644})

    def test_nothing_is_left_out(self):
        """Each unit has settings, and each file of the folder has a test here."""
        names = {os.path.basename(path) for path in glob.glob(f"{UNITS}/*.service")}
        self.assertEqual(names, {f"flexfeed-{name}.service" for name in UNITS_OF})
        names = {os.path.basename(path) for path in glob.glob(f"{UNITS}/config/*")}
        self.assertEqual(names, {*(f"{name}.toml" for name in PROGRAMS), "gateway-example.env"})


if __name__ == "__main__":
    unittest.main()

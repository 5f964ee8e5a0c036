"""The tarball for machines without containers: whole, and its programs run in a system that has what they say that they need.

FLEXFEED_TARBALL names it. Static programs need nothing: they are tried in a system without any library.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", ".."))
PROGRAMS = ("source", "relay", "receiver", "console", "gateway", "swarm")

# Libraries that a program may need: glibc, and GCC's that are on every Debian.
C_LIBRARY = re.compile(r"^(linux-vdso\.so\.1|libc\.so\.6|libm\.so\.6|ld-linux-[\w-]+\.so\.\d|libgcc_s\.so\.1|libstdc\+\+\.so\.6)$")

# The glibc that the documents say is enough for what was built on Debian 12, and Debian 12's own.
FLOOR = (2, 34)
DEBIAN_12 = (2, 36)

LINK = "flexfeed://T@{host}:9?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA&ch=lore"

# A module of the name service that terminates the process that loads it.
MODULE = "__attribute__((constructor)) static void loaded(void) { __builtin_trap(); }"
# A static program that looks its argument up, as any would do.
LOOKS_UP = """
#include <netdb.h>
int main(int n, char **v) { struct addrinfo *found; return n != 2 || getaddrinfo(v[1], 0, 0, &found) != 0; }
"""


def is_static(program):
    """Whether it asks for no loader of libraries, by its ELF header."""
    done = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True)
    return "INTERP" not in done.stdout


class Unpacked(unittest.TestCase):
    """As unpacked by a user."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="flexfeed-tarball-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run(["tar", "-xzf", os.environ["FLEXFEED_TARBALL"], "-C", cls.folder], check=True)
        (name,) = os.listdir(cls.folder)
        cls.tree = os.path.join(cls.folder, name)
        cls.static = name.endswith("-static")

    def program(self, name):
        """Returns the path of one of its programs."""
        return f"{self.tree}/bin/flexfeed-{name}"

    def need_root(self):
        """Some tests change into another system."""
        if os.geteuid() != 0:
            if os.environ.get("FLEXFEED_REQUIRE_PEERS"):
                self.fail("only root can change into another system")
            self.skipTest("only root can change into another system")


class Whole(Unpacked):
    """Contents of the tarball."""

    def test_it_is_whole(self):
        """By its own list of checksums, which has every file; and a file that was changed is noticed."""
        check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
        subprocess.run(check, cwd=self.tree, check=True)
        with open(f"{self.tree}/SHA256SUMS", encoding="utf-8") as file:
            listed = {line.split(maxsplit=1)[1].strip() for line in file}
        found = {
            os.path.join(folder, name).replace(self.tree, ".", 1)
            for folder, _, names in os.walk(self.tree)
            for name in names
        }
        self.assertEqual(listed, found - {"./SHA256SUMS"})
        for path in ("LICENSE-MIT", "LICENSE-APACHE", "README.md", "share/doc/flexfeed/deploy/systemd/flexfeed-relay.service.d/capture.conf"):
            self.assertIn(f"./{path}", listed)
        for path in os.listdir(f"{ROOT}/deploy/systemd"):
            if path.endswith(".service"):
                self.assertIn(f"./lib/systemd/system/{path}", listed)
        for path in os.listdir(f"{ROOT}/deploy/systemd/config"):
            self.assertIn(f"./etc/flexfeed/{path}", listed)
        with open(f"{self.tree}/README.md", "a", encoding="utf-8") as file:
            file.write("changed")
        done = subprocess.run(check, cwd=self.tree, capture_output=True, check=False)
        self.assertNotEqual(done.returncode, 0)

    def test_links_of_documents_lead_somewhere(self):
        """To a file that was packed, and to a heading that is there."""
        looked_at = 0
        for folder, _, names in os.walk(self.tree):
            for name in names:
                if not name.endswith(".md"):
                    continue
                with open(f"{folder}/{name}", encoding="utf-8") as file:
                    text = file.read()
                for target in re.findall(r"\]\(([^)\s]+)\)", text):
                    if re.match(r"[a-z]+:", target):
                        continue
                    looked_at += 1
                    path, _, heading = target.partition("#")
                    there = os.path.normpath(f"{folder}/{path}") if path else f"{folder}/{name}"
                    with self.subTest(document=name, link=target):
                        self.assertTrue(there.startswith(self.tree) and os.path.exists(there))
                        if heading:
                            self.assertIn(heading, headings(there))
        self.assertGreater(looked_at, 100)

    def test_documents_that_units_name_are_there(self):
        """systemctl help UNIT shows them."""
        for name in os.listdir(f"{self.tree}/lib/systemd/system"):
            with open(f"{self.tree}/lib/systemd/system/{name}", encoding="utf-8") as file:
                (path,) = re.findall(r"^Documentation=file:///usr/local/(\S+)$", file.read(), re.M)
            self.assertTrue(os.path.exists(f"{self.tree}/{path}"), f"{name}: {path}")

    def test_it_says_of_which_kind_it_is(self):
        """By its name and on its first page; the programs are that."""
        self.assertTrue(self.tree.endswith("-static" if self.static else "-gnu"))
        with open(f"{self.tree}/README.md", encoding="utf-8") as file:
            self.assertIn("are static" if self.static else "need the libraries", file.read())
        for name in PROGRAMS:
            self.assertEqual(is_static(self.program(name)), self.static, name)


def headings(path):
    """Returns the anchors of a document's headings."""
    with open(path, encoding="utf-8") as file:
        lines = re.findall(r"^#+ (.*)$", file.read(), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


class Running(Unpacked):
    """In a system of its own."""

    def needed(self, program):
        """The libraries that a program is linked with, with where they are; none for one that is linked statically."""
        if is_static(program):
            return {}
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        found = {}
        for line in done.stdout.splitlines():
            name, *rest = line.split()
            path = next((word for word in [name, *rest] if word.startswith("/")), None)
            found[os.path.basename(name)] = path
        return found

    def test_programs_run_where_there_is_nothing_else(self):
        """In a folder with the program and the libraries that it names; without those it does not run, if it names any."""
        self.need_root()
        for name in PROGRAMS:
            with self.subTest(name), tempfile.TemporaryDirectory() as root:
                program = self.program(name)
                shutil.copy(program, root)
                libraries = self.needed(program)
                self.assertEqual(not libraries, self.static)
                for library in libraries:
                    self.assertRegex(library, C_LIBRARY)
                version = ["chroot", root, f"/flexfeed-{name}", "--version"]
                if libraries:
                    done = subprocess.run(version, capture_output=True, check=False)
                    self.assertNotEqual(done.returncode, 0)
                for path in filter(None, libraries.values()):
                    os.makedirs(root + os.path.dirname(path), exist_ok=True)
                    shutil.copy(path, root + path)
                done = subprocess.run(version, capture_output=True, text=True, check=True)
                self.assertTrue(done.stdout.startswith(f"flexfeed-{name} "), done.stdout)

    def system(self, files):
        """An empty system with these files, and the libraries of the receiver if it needs any."""
        root = tempfile.mkdtemp(prefix="flexfeed-root-")
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        for path, text in files.items():
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "w", encoding="utf-8") as file:
                file.write(text)
        for name in ("receiver", "source"):
            shutil.copy(self.program(name), root)
        for path in filter(None, self.needed(self.program("receiver")).values()):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            shutil.copy(path, root + path)
        return root

    def run_in(self, root, *command):
        """Runs a program there, in an empty network with a name service that says 192.0.2.53 to everything; its exit code and what it said."""
        inside = ["unshare", "--net", sys.executable, f"{HERE}/names.py", "192.0.2.53", "chroot", root, *command]
        done = subprocess.run(inside, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def test_names_are_found(self):
        """By /etc/hosts first and else by the DNS; without either they are not."""
        self.need_root()
        root = self.system({"etc/hosts": "192.0.2.7 in-hosts.test\n", "etc/resolv.conf": "nameserver 127.0.0.1\n"})
        for host, address in (("in-hosts.test", "192.0.2.7"), ("in-dns.test", "192.0.2.53")):
            code, output = self.run_in(root, "/flexfeed-receiver", "doctor", LINK.format(host=host), "--data", "/data")
            self.assertEqual(code, 1, output)
            self.assertIn(f"{host} is {address}", output)
        _, output = self.run_in(root, "/flexfeed-source", "feed", "check", "http://in-dns.test/feed", "--local")
        self.assertIn("unreachable", output, "found, and there is no way to it")
        bare = self.system({"etc/resolv.conf": "nameserver 127.0.0.99\noptions timeout:1 attempts:1\n"})
        _, output = self.run_in(bare, "/flexfeed-receiver", "doctor", LINK.format(host="in-hosts.test"), "--data", "/data")
        self.assertIn("in-hosts.test is not found", output)

    def test_modules_of_another_system_are_left_alone(self):
        """A static program does not load what nsswitch.conf names: it would be made for another C library. An ordinary static
        program does, and ends by it: else this test says nothing."""
        self.need_root()
        if not self.static:
            self.skipTest("these programs are for the system's own modules")
        root = self.system({
            "etc/hosts": "192.0.2.7 in-hosts.test\n",
            "etc/resolv.conf": "nameserver 127.0.0.1\n",
            "etc/nsswitch.conf": "hosts: trap [NOTFOUND=return] files dns\npasswd: trap\ngroup: trap\n",
            "lib/trap.c": MODULE,
            "plain.c": LOOKS_UP,
        })
        build = ["cc", "-shared", "-nostdlib", "-fPIC", "-o", f"{root}/lib/libnss_trap.so.2", f"{root}/lib/trap.c"]
        subprocess.run(build, check=True)
        # Its search path depends on the system that the program was built on.
        for folder in ("lib64", "usr/lib", "usr/lib64", f"lib/{os.uname().machine}-linux-gnu", f"usr/lib/{os.uname().machine}-linux-gnu"):
            os.makedirs(f"{root}/{folder}", exist_ok=True)
            shutil.copy(f"{root}/lib/libnss_trap.so.2", f"{root}/{folder}/")
        subprocess.run(["cc", "-static", "-o", f"{root}/plain", f"{root}/plain.c"], check=True, capture_output=True)
        code, output = self.run_in(root, "/plain", "in-hosts.test")
        self.assertGreater(code, 128, f"the trap does not snap: {output}")
        code, output = self.run_in(root, "/flexfeed-receiver", "doctor", LINK.format(host="in-hosts.test"), "--data", "/data")
        self.assertEqual(code, 1, output)
        self.assertIn("in-hosts.test is 192.0.2.7", output)

    def test_the_c_library_may_be_old(self):
        """No program that is built on Debian 12 needs a newer one than the documents say."""
        if self.static:
            self.skipTest("static programs need none")
        own = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
        if own > DEBIAN_12:
            self.skipTest(f"this machine's C library is {own}")
        for name in PROGRAMS:
            with self.subTest(name):
                done = subprocess.run(["objdump", "-T", self.program(name)], capture_output=True, text=True, check=False)
                needed = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", done.stdout)}
                self.assertTrue(needed, "objdump says nothing")
                self.assertLessEqual(max(needed), FLOOR)


if __name__ == "__main__":
    unittest.main()

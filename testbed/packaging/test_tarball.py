"""The tarball for machines without containers: whole, and its programs run in a system that has their libraries and nothing else.

FLEXFEED_TARBALL names it.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAMS = ("source", "relay", "receiver", "console", "gateway")

# What a program may ask of a system: glibc, and what of GCC is on every Debian.
C_LIBRARY = re.compile(r"^(linux-vdso\.so\.1|libc\.so\.6|libm\.so\.6|ld-linux-[\w-]+\.so\.\d|libgcc_s\.so\.1|libstdc\+\+\.so\.6)$")

# The glibc that the documents say is enough for what was built on Debian 12, and Debian 12's own.
FLOOR = (2, 34)
DEBIAN_12 = (2, 36)


class Tarball(unittest.TestCase):
    """As somebody finds it who unpacked it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="flexfeed-tarball-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run(["tar", "-xzf", os.environ["FLEXFEED_TARBALL"], "-C", cls.folder], check=True)
        (name,) = os.listdir(cls.folder)
        cls.tree = os.path.join(cls.folder, name)

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
        for path in ("./LICENSE-MIT", "./LICENSE-APACHE", "./README.md", "./etc/flexfeed/source.toml", "./lib/systemd/system/flexfeed-relay.service"):
            self.assertIn(path, listed)
        with open(f"{self.tree}/README.md", "a", encoding="utf-8") as file:
            file.write("changed")
        done = subprocess.run(check, cwd=self.tree, capture_output=True, check=False)
        self.assertNotEqual(done.returncode, 0)

    def needed(self, program):
        """The libraries that a program is linked with, with where they are; none for one that is linked statically."""
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        if "statically linked" in done.stdout or "not a dynamic executable" in done.stderr:
            return {}
        found = {}
        for line in done.stdout.splitlines():
            name, *rest = line.split()
            path = next((word for word in [name, *rest] if word.startswith("/")), None)
            found[os.path.basename(name)] = path
        return found

    def test_programs_run_where_there_is_nothing_else(self):
        """In a folder with the program and the libraries that it names; without those it does not run, if it names any."""
        if os.geteuid() != 0:
            self.skipTest("only root can change into another system")
        for name in PROGRAMS:
            with self.subTest(name), tempfile.TemporaryDirectory() as root:
                program = f"{self.tree}/bin/flexfeed-{name}"
                shutil.copy(program, root)
                libraries = self.needed(program)
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

    def test_the_c_library_may_be_old(self):
        """No program that is built on Debian 12 needs a newer one than the documents say."""
        own = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
        if own > DEBIAN_12:
            self.skipTest(f"this machine's C library is {own}")
        for name in PROGRAMS:
            with self.subTest(name):
                done = subprocess.run(["objdump", "-T", f"{self.tree}/bin/flexfeed-{name}"], capture_output=True, text=True, check=False)
                needed = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", done.stdout)}
                self.assertTrue(needed, "objdump says nothing")
                self.assertLessEqual(max(needed), FLOOR)


if __name__ == "__main__":
    unittest.main()

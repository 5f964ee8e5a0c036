"""Properties of the images: small, without a shell, for a numeric user, healthy, and stopped within seconds of SIGTERM."""

import io
import json
import os
import subprocess
import tarfile
import unittest
import zlib

from engine import RUN, Container, docker, image, inspect, wait
from stage import CONTAINED

ALL = ("source", "relay", "receiver", "console", "gateway")

# Files that the engine adds to each container.
ENGINE = {".dockerenv", "dev/console", "etc/hostname", "etc/hosts", "etc/resolv.conf"}

# Maximum compressed size of the receiver's image, in bytes.
RECEIVER = 30_000_000


def files(name):
    """The names of what is in an image, but for what the engine mounts."""
    made = docker("create", image(name), "--help")
    try:
        whole = subprocess.run(["docker", "export", made], capture_output=True, check=True).stdout
    finally:
        docker("rm", "-v", made)
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return {one.name: one for one in tar.getmembers()}


class Image(unittest.TestCase):
    """Looked at from outside."""

    def test_nothing_but_the_program(self):
        """One program, no shell, no package manager, nothing writable by others but /data."""
        for name in ALL:
            with self.subTest(name):
                found = files(name)
                programs = {path for path, one in found.items() if one.isfile() and one.mode & 0o111}
                programs = {path for path in programs if ".so" not in path and path not in ENGINE}
                self.assertEqual(programs, {f"usr/bin/flexfeed-{name}"})
                for path, one in found.items():
                    ours = path == "data" or path.startswith("data/")
                    self.assertEqual(one.uid, 65532 if ours else 0, path)
                    self.assertFalse(one.mode & 0o6000, f"{path} would give rights away")
                for path in ("etc/passwd", "etc/nsswitch.conf", "etc/ssl/certs/ca-certificates.crt"):
                    self.assertIn(path, found)
                self.assertIn("usr/share/doc/flexfeed/LICENSE-MIT", found)

    def test_how_they_run(self):
        """A numeric user, a health check by the program itself, and labels."""
        version = docker("run", "--rm", image("receiver"), "--version").split()[-1]
        for name in ALL:
            with self.subTest(name):
                config = inspect(image(name), "image")["Config"]
                self.assertEqual(config["User"], "65532:65532")
                self.assertEqual(config["Entrypoint"], [f"/usr/bin/flexfeed-{name}"])
                self.assertFalse(config.get("Cmd"))
                self.assertEqual(config["StopSignal"], "SIGTERM")
                if name != "gateway":
                    self.assertEqual(config["Healthcheck"]["Test"], ["CMD", f"/usr/bin/flexfeed-{name}", "health"])
                labels = config["Labels"]
                self.assertEqual(labels["org.opencontainers.image.version"], version)
                self.assertEqual(labels["org.opencontainers.image.licenses"], "Apache-2.0 OR MIT")
                for label in ("title", "description", "vendor"):
                    self.assertTrue(labels[f"org.opencontainers.image.{label}"], label)
                # Empty where the builder got no values; then they are not times and addresses.
                self.assertRegex(labels["org.opencontainers.image.revision"], r"^([0-9a-f]{40}(-changed)?)?$")
                self.assertRegex(labels["org.opencontainers.image.created"], r"^(\d{4}-\d\d-\d\dT[\d:]{8}(Z|[+-][\d:]{5}))?$")
                for label in ("source", "url", "documentation"):
                    self.assertRegex(labels[f"org.opencontainers.image.{label}"], r"^(https?://\S+)?$")

    def test_the_receiver_is_small(self):
        """Compressed, as it is sent to a registry."""
        with subprocess.Popen(["docker", "save", image("receiver")], stdout=subprocess.PIPE) as saving:
            packer = zlib.compressobj(6)
            size = sum(len(packer.compress(part)) for part in iter(lambda: saving.stdout.read(1 << 20), b""))
        size += len(packer.flush())
        print(f"flexfeed/receiver: {size / 1e6:.1f} MB compressed")
        self.assertLessEqual(size, RECEIVER)


class Running(unittest.TestCase):
    """Each by itself, contained, and without what it would be connected with."""

    LINK = "flexfeed://T@192.0.2.1:4433?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA&ch=lore"

    def run_one(self, name, *command, settings=(), more=()):
        """Starts one with a health check each two seconds. Several such on a busy machine take long to begin."""
        checks = ["--health-interval", "2s", "--health-timeout", "60s", "--health-start-period", "1ms"]
        options = [*CONTAINED, *checks, *more]
        for setting in settings:
            options += ["-e", setting]
        one = Container.run(name, image(name), *command, options=options)
        self.addCleanup(one.remove)
        return one

    def health(self, one):
        """Returns the engine's description."""
        state = one.state()
        self.assertTrue(state["Running"], f"{one.name} has ended: {one.logs()[-1000:]}")
        return state["Health"]["Status"]

    def each(self):
        """One of each that can be on its own."""
        yield self.run_one("source", "--multicast-ttl", "0", "--feed", "http://192.0.2.1/feed", "--allow-private-feed")
        yield self.run_one("relay")
        yield self.run_one("receiver", self.LINK)
        volume = f"{RUN}-console:/data"
        self.addCleanup(lambda: docker("volume", "rm", "-f", volume.split(":")[0], check=False))
        yield self.run_one("console", settings=["DATABASE_URL=sqlite:///data/flexfeed.db"], more=["-v", volume])

    def test_healthy_until_sigterm(self):
        """The program's own check says so; SIGTERM ends it with 0 in good time."""
        for one in list(self.each()):
            with self.subTest(one.name):
                wait(f"{one.name} is healthy: {one.state()['Health']['Log'][-1:]}", lambda one=one: self.health(one) == "healthy", 240)
                # After that time the engine would kill it, which is 137.
                self.assertEqual(one.stop(90), 0, one.logs()[-1000:])

    def test_a_check_that_cannot_succeed_fails(self):
        """A receiver that answers nowhere is not healthy: else the test above says nothing."""
        one = self.run_one("receiver", self.LINK, settings=["FLEXFEED_HTTP=off"])
        wait("it is unhealthy", lambda: self.health(one) == "unhealthy", 240)

    def test_a_folder_that_is_read_only_is_named(self):
        """Without any writable folder, no other user would help."""
        options = [*CONTAINED, "-v", f"{RUN}-ro:/data:ro"]
        one = Container.run("ro", image("receiver"), self.LINK, options=options)
        self.addCleanup(lambda: docker("volume", "rm", "-f", f"{RUN}-ro", check=False))
        self.addCleanup(one.remove)
        self.assertEqual(one.wait_ended(), 1)
        self.assertIn("mounted read-only", one.logs())


if __name__ == "__main__":
    unittest.main()

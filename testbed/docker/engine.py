"""Docker, as the tests use it: by its command line, and with everything that they make named after the run."""

import http.client
import json
import os
import subprocess
import time

# Prefix of everything that the tests of one run create and remove.
RUN = f"fft{os.getpid()}"
PREFIX = os.environ.get("FLEXFEED_IMAGE_PREFIX", "flexfeed")
TAG = os.environ.get("FLEXFEED_TAG", "latest")


# Whether what is not here must not be left out of the tests.
COMPLETE = bool(os.environ.get("FLEXFEED_REQUIRE_PEERS"))


class Failed(Exception):
    """A command of Docker that did not succeed; says what it said."""


# Errors that `wait` retries: no answer, a partial one, or one without the expected part.
NOT_YET = (
    OSError,
    ValueError,
    LookupError,
    StopIteration,
    http.client.HTTPException,
    Failed,
    subprocess.TimeoutExpired,
)


class TooLate(AssertionError):
    """A wait timed out. Tests that break a promise on purpose expect this."""


def image(name):
    """The name of one of our images."""
    return f"{PREFIX}/{name}:{TAG}"


def docker(*arguments, check=True, timeout=120, stdin=None):
    """Runs Docker's client; returns what it printed on standard output."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout, input=stdin
    )
    if check and done.returncode != 0:
        raise Failed(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def inspect(what, *kind):
    """Returns Docker's description of a container, image or network."""
    return json.loads(docker(*kind, "inspect", what))[0]


def wait(what, look, seconds=60.0):
    """Waits until `look` returns something; `what` is for the message where it does not within the time."""
    end = time.monotonic() + seconds
    last = None
    while True:
        try:
            found = look()
            if found:
                return found
        except NOT_YET as error:
            last = error
        if time.monotonic() > end:
            raise TooLate(f"within {seconds:g} s not: {what}" + (f" ({last})" if last else ""))
        time.sleep(0.2)


class Container:
    """A container that runs, or ended."""

    def __init__(self, name):
        self.name = name

    @classmethod
    def create(cls, name, image_name, *command, options=()):
        """Makes one that does not run yet. Its name is the run's and `name`."""
        full = f"{RUN}-{name}"
        docker("create", "--name", full, *options, image_name, *command)
        return cls(full)

    @classmethod
    def run(cls, name, image_name, *command, options=()):
        """Makes one and starts it."""
        made = cls.create(name, image_name, *command, options=options)
        made.start()
        return made

    def state(self):
        """Whether and how it runs."""
        return inspect(self.name, "container")["State"]

    def address(self, network=None):
        """Its IPv4 address, in a network."""
        networks = inspect(self.name, "container")["NetworkSettings"]["Networks"]
        name, at = next(
            (name, at) for name, at in networks.items() if network is None or name == network
        )
        if not at["IPAddress"]:
            raise ValueError(f"{self.name} has no address in {name}")
        return at["IPAddress"]

    def logs(self):
        """All that it wrote."""
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True)
        return done.stdout + done.stderr

    def kill(self):
        """Ends it as a crash does."""
        docker("kill", self.name)

    def start(self):
        """Starts it again."""
        docker("start", self.name)

    def stop(self, seconds=30):
        """Tells it to end; returns its exit code."""
        docker("stop", "-t", str(seconds), self.name)
        return self.state()["ExitCode"]

    def remove(self):
        """Removes it, also while it runs; its named volumes stay."""
        docker("rm", "-f", "-v", self.name, check=False)

    def wait_for(self, text, seconds=60):
        """Waits for something in its log."""
        try:
            wait(f"{text!r} in the log of {self.name}", lambda: text in self.logs(), seconds)
        except TooLate as error:
            raise TooLate(f"{error}; the log ends:\n{self.logs()[-2000:]}") from None

    def wait_ended(self, seconds=90):
        """Waits for its end; returns its exit code."""
        wait(f"{self.name} ends", lambda: self.state()["Status"] == "exited", seconds)
        return self.state()["ExitCode"]


def clean():
    """Removes everything of this run."""
    named = f"name={RUN}"
    for containers in [docker("ps", "-aq", "--filter", named, check=False).split()]:
        if containers:
            docker("rm", "-f", "-v", *containers, check=False)
    for network in docker("network", "ls", "-q", "--filter", named, check=False).split():
        docker("network", "rm", network, check=False)
    for volume in docker("volume", "ls", "-q", "--filter", named, check=False).split():
        docker("volume", "rm", "-f", volume, check=False)

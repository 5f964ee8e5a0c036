"""A source and its relay, each in its container, in one Docker network, and receivers in others."""

import contextlib
import json
import os
import random
import shutil
import socket
import tempfile
import urllib.request

from engine import RUN, Container, TooLate, docker, image, inspect, wait
from growing import Feed

# As the documents say that it works: nothing can be written but volumes, and nothing can be gained.
CONTAINED = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]


# The ports that were given away. Most are not bound at once.
GIVEN = set()


def free_port():
    """Returns an unused port outside the ephemeral range (above 32,767), each once."""
    while True:
        port = random.randrange(21_000, 32_000)
        if port in GIVEN:
            continue
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
            contextlib.suppress(OSError),
        ):
            udp.bind(("0.0.0.0", port))
            tcp.bind(("0.0.0.0", port))
            GIVEN.add(port)
            return port


def fetch(url, timeout=30):
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


class Network:
    """A network of the engine: a bridge, unless its driver is named."""

    def __init__(self, name, *options):
        self.name = f"{RUN}-{name}"
        docker("network", "create", *options, self.name)
        self.gateway = inspect(self.name, "network")["IPAM"]["Config"][0].get("Gateway")


class Receiver:
    """A receiver in a container. What it was delivered is logged in a folder of this machine, so that it outlives its volume."""

    def __init__(self, stage, name, link, network, options=(), settings=(), data=True):
        self.name = name
        self.folder = tempfile.mkdtemp(prefix=f"{RUN}-{name}-")
        os.chmod(self.folder, 0o777)
        stage.folders.append(self.folder)
        self.volume = f"{RUN}-{name}-data" if data else None
        self._network = network
        self._given = ["--network", network.name if isinstance(network, Network) else network]
        self._given += [*CONTAINED, *options, "-v", f"{self.folder}:/log"]
        for setting in ["FLEXFEED_DELIVERY_LOG=/log/deliveries", f"FLEXFEED_NAME={name}", *settings]:
            self._given += ["-e", setting]
        self._link = link
        self.run()

    def run(self):
        """Makes its container."""
        volume = ["-v", f"{self.volume}:/data"] if self.volume else []
        options = [*self._given, *volume]
        self.container = Container.run(self.name, image("receiver"), self._link, options=options)

    def again(self, link=None):
        """Recreates its container, perhaps with another link. Earlier deliveries do not count."""
        log = f"{self.folder}/deliveries"
        if os.path.exists(log):
            os.remove(log)
        self._link = link or self._link
        self.run()

    def forget(self):
        """Removes its container and its volume."""
        self.container.remove()
        if self.volume:
            docker("volume", "rm", "-f", self.volume)

    def ask(self, path):
        """Returns its HTTP response."""
        host = self.container.address() if isinstance(self._network, Network) else "127.0.0.1"
        return fetch(f"http://{host}:{self.port()}{path}")

    def port(self):
        """Its HTTP port."""
        given = [one for one in self._given if one.startswith("FLEXFEED_HTTP=")]
        return int(given[-1].rsplit(":", 1)[1]) if given else 8080

    def rung(self):
        """The rung of its first channel."""
        status = json.loads(self.ask("/status.json"))
        return status["channels"][0]["rung"] if status["connected"] else "offline"

    def wait_rung(self, *rungs, seconds=120):
        """Waits until it stands on one of these."""
        try:
            return wait(
                f"{self.name} on {' or '.join(rungs)}",
                lambda: (now := self.rung()) in rungs and now,
                seconds,
            )
        except TooLate as error:
            try:
                status = self.ask("/status.json")
            except OSError as other:
                status = str(other)
            raise TooLate(f"{error}; its status: {status[:3000]}") from None

    def delivered(self):
        """Returns its deliveries: pairs of number and entry id, in order of arrival."""
        try:
            with open(f"{self.folder}/deliveries", encoding="utf-8") as lines:
                whole = [line for line in lines if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [(one["seq"], one["id"]) for one in map(json.loads, whole)]

    def wait_all(self, ids, seconds=60):
        """Waits until it has all of these entries, each under one number, and none is missing between two numbers."""
        wanted = set(ids)
        try:
            wait(
                f"all {len(wanted)} entries at {self.name}",
                lambda: wanted <= {one for _, one in self.delivered()},
                seconds,
            )
        except TooLate as error:
            missing = sorted(wanted - {one for _, one in self.delivered()})
            raise TooLate(f"{error}; {len(missing)} are missing, the first: {missing[:3]}") from None
        pairs = set(self.delivered())
        numbers = sorted(number for number, _ in pairs)
        if len(numbers) != len({one for _, one in pairs}):
            raise AssertionError(f"{self.name} has entries under two numbers")
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise AssertionError(f"{self.name} lacks numbers between {numbers[0]} and {numbers[-1]}")


class Stage:
    """Source, relay, feed and networks; everything goes at the end of the `with`. What `fails` is not wondered at."""

    def __init__(self, relay=True, source_options=(), second=None, fails=False):
        self.fails = fails
        self.folders = []
        self.feed = Feed()
        self.feed.add(20)
        self.receivers = []
        self.far = Network("far")
        self.home = Network("home")
        port, relay_port = free_port(), free_port()
        flow = ["--flow-source", second[1]] if second else []
        # Receivers reach this machine by the gateway of their network, and it hands on what comes to the ports.
        public = f"{self.home.gateway}:{port}"
        placed = [*CONTAINED, "--network", self.far.name]
        self.relay = Container(f"{RUN}-relay")
        self.source = Container.create(
            "source",
            image("source"),
            *["--feed", f"http://{self.far.gateway}:{self.feed.port}/feed.atom"],
            *["--allow-private-feed", "--poll-interval", "500ms", "--public-address", public],
            *["--multicast-ttl", "1", *flow, *source_options],
            *["--relay", f"{self.home.gateway}:{relay_port}={self.relay.name}"],
            options=[*placed, "-p", f"{port}:4433/udp", "-v", f"{RUN}-source:/data"],
        )
        # A second network of the source, in which the flow is sent.
        if second:
            network, at = second
            docker("network", "connect", "--ip", at, network.name, self.source.name)
        self.source.start()
        if relay:
            Container.run("relay", image("relay"), options=[*placed, "-p", f"{relay_port}:2268/udp"])
        wait("an enrolment link", lambda: self.link())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.feed.close()
        if kind and os.environ.get("FLEXFEED_KEEP_RUNS"):
            return
        for one in [*[r.container for r in self.receivers], self.relay, self.source]:
            if kind and not self.fails:
                print(f"--- {one.name}, the end of its log:\n{one.logs()[-1500:]}")
            one.remove()
        for receiver in self.receivers:
            if receiver.volume:
                docker("volume", "rm", "-f", receiver.volume, check=False)
        docker("volume", "rm", "-f", f"{RUN}-source", check=False)
        for network in (self.far, self.home):
            docker("network", "rm", network.name, check=False)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def link(self, host=None, port=4433, limit=None):
        """An enrolment link; for receivers that reach the source elsewhere than all others, with that address."""
        more = ["--public-address", f"{host}:{port}"] if host else []
        more += ["--limit", str(limit)] if limit else []
        output = docker(
            "exec", self.source.name, "/usr/bin/flexfeed-source", "token", "create", "--json", *more
        )
        return json.loads(output)["link"]

    def receiver(self, name, network=None, link=None, **more):
        """Starts a receiver, by default in the network without multicast."""
        one = Receiver(self, name, link or self.link(), network or self.home, **more)
        self.receivers.append(one)
        return one
